#!/bin/sh
# The first process of the virtual machine: makes the host's root writable in memory, and runs JOB in it.
# In the archive: /modules (in the order in which they are loaded), /settings (HOST_MODULES, VERSION, JOB).
. /settings
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules.d/$module" || echo "insmod $module failed"; done < /modules
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro root /lower
mount -t tmpfs -o size=80% upper /upper
mkdir -p /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work over /new
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts pts /new/dev/pts
for memory in /dev/shm /tmp /run; do mount -t tmpfs memory /new$memory; done
mount -t cgroup2 cgroup /new/sys/fs/cgroup
mount -t bpf bpf /new/sys/fs/bpf
for modules in /lib/modules/$VERSION /new/lib/modules/$VERSION; do
	mkdir -p "$modules"
	mount --bind "/new$HOST_MODULES" "$modules"
done
echo /bin/modprobe > /proc/sys/kernel/modprobe
chroot /new /bin/sh "$JOB"
poweroff -f

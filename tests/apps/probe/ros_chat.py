"""`talk` publishes numbers, and now and then a large message, until it is ended. `listen N` waits for N numbers in a
row and says one RESULT line."""

import json
import sys
import time

import rospy
from std_msgs.msg import Int64, String

LARGE = 4_000_000


def talk():
    rospy.init_node("talker")
    numbers = rospy.Publisher("numbers", Int64, queue_size=1000)
    images = rospy.Publisher("images", String, queue_size=2)
    rate, n = rospy.Rate(200), 0
    while not rospy.is_shutdown():
        numbers.publish(n)
        if n % 40 == 0:
            images.publish(chr(97 + n // 40 % 26) * LARGE)
        n += 1
        rate.sleep()


def listen(wanted):
    rospy.init_node("listener")
    got, images, wrong = [], [], []

    def number(message):
        if got and message.data != got[-1] + 1:
            wrong.append(f"{message.data} after {got[-1]}")
        got.append(message.data)

    def image(message):
        if len(message.data) != LARGE or message.data != message.data[:1] * LARGE:
            wrong.append(f"an image of {len(message.data)} bytes")
        images.append(message.data[:1])

    rospy.Subscriber("numbers", Int64, number)
    rospy.Subscriber("images", String, image)
    begin = time.monotonic()
    while (len(got) < wanted or len(images) < 5) and not wrong and time.monotonic() - begin < 60:
        time.sleep(0.05)
    took = time.monotonic() - begin
    if wrong or len(got) < wanted:
        sys.exit(f"{len(got)} numbers, {len(images)} images, wrong: {wrong[:5]}")
    print("RESULT", json.dumps({"numbers": len(got), "images": len(images), "seconds": took}), flush=True)


if __name__ == "__main__":
    talk() if sys.argv[1] == "talk" else listen(int(sys.argv[2]))

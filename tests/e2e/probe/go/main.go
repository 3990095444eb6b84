// Command go talks over TCP and UDP the way Go programs do: `serve PORT` echoes, `ask ECHO CLOSED UDP` asks.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

func main() {
	var err error
	if os.Args[1] == "serve" {
		err = serve(os.Args[2])
	} else {
		err = errors.Join(ask(os.Args[2]), refused(os.Args[3]), datagram(os.Args[4]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("fine")
}

func serve(port string) error {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func ask(address string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	data := bytes.Repeat([]byte("go"), 100_000)
	go func() {
		c.Write(data)
		c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes came back of %d", len(got), len(data))
	}
	return err
}

func refused(address string) error {
	for range 2 {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err == nil {
			c.SetDeadline(time.Now().Add(time.Second))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("refused by %v", err)
		}
	}
	return nil
}

func datagram(address string) error {
	c, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := c.Write([]byte("go")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 10))
	return err
}

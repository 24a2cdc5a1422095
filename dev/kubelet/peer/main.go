// Command peer is all that the smallest images of a node hold. Without
// arguments it sleeps, as the first container of each pod does. In tests of
// Services and names it is one end of a connection:
//
//	peer serve NETWORK:[HOST:]PORT...   answer each caller with this machine's name
//	peer dial [NETWORK:]HOST:PORT...    print for each, in order: the answer, `refused`, `timeout` or the error
//	peer http PORT STATUS               answer requests with this status
//	peer memory                         take memory until it is killed
//	peer exit STATUS                    end at once
//
// A network is tcp or udp.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a dial waits for a connection, and then for an answer. Refused packets are dropped.
const patience = time.Second

func main() {
	arguments := os.Args[1:]
	if len(arguments) == 0 {
		arguments = []string{"sleep"}
	}
	switch command, rest := arguments[0], arguments[1:]; command {
	case "sleep":
		sleep()
	case "serve":
		for _, address := range rest {
			serve(address)
		}
		sleep()
	case "dial":
		dialAll(rest)
	case "http":
		go sleep()
		status, _ := strconv.Atoi(rest[1])
		answer := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		fail(http.ListenAndServe(":"+rest[0], http.HandlerFunc(answer)))
	case "memory":
		takeMemory()
	case "exit":
		status, _ := strconv.Atoi(rest[0])
		fmt.Fprintln(os.Stderr, "peer: fatal: ends with status", status)
		os.Exit(status)
	default:
		fail(fmt.Errorf("unknown command %s", command))
	}
}

// sleep ends with SIGTERM or SIGINT. As the first process of a pod it also reaps those whose parents have ended.
func sleep() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for got := range signals {
		if got != syscall.SIGCHLD {
			os.Exit(0)
		}
		for {
			if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
				break
			}
		}
	}
}

func serve(address string) {
	name, _ := os.Hostname()
	network, address, _ := strings.Cut(address, ":")
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	if network == "udp" {
		socket, err := net.ListenPacket(network, address)
		fail(err)
		go func() {
			for buffer := make([]byte, 64); ; {
				if _, caller, err := socket.ReadFrom(buffer); err == nil {
					socket.WriteTo([]byte(name), caller)
				}
			}
		}()
		return
	}
	listener, err := net.Listen(network, address)
	fail(err)
	go func() {
		for {
			connection, err := listener.Accept()
			fail(err)
			fmt.Fprint(connection, name)
			connection.Close()
		}
	}()
}

// dialAll dials them side by side.
func dialAll(addresses []string) {
	answers := make([]string, len(addresses))
	var all sync.WaitGroup
	for at, address := range addresses {
		all.Go(func() { answers[at] = dial(address) })
	}
	all.Wait()
	fmt.Println(strings.Join(answers, "\n"))
}

func dial(address string) string {
	network := "tcp"
	for _, known := range []string{"tcp", "udp"} {
		if rest, is := strings.CutPrefix(address, known+":"); is {
			network, address = known, rest
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return outcome(err)
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(patience))
	if network == "udp" {
		connection.Write([]byte("?"))
	}
	buffer := make([]byte, 64)
	length, err := connection.Read(buffer)
	if length == 0 && err != nil {
		if network == "tcp" {
			return "connected"
		}
		return outcome(err)
	}
	return string(buffer[:length])
}

func outcome(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

// takeMemory takes 4 MiB every 10 ms, and touches every page of it.
func takeMemory() {
	for taken := [][]byte{}; ; time.Sleep(10 * time.Millisecond) {
		block := make([]byte, 4<<20)
		for at := 0; at < len(block); at += 4096 {
			block[at] = 1
		}
		taken = append(taken, block)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

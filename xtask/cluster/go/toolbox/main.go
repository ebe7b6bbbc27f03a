// Command toolbox is the program of the test pods: servers that say who they are and whom they see, and clients that say
// what happened. It needs no shell and no library around it.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `toolbox COMMAND
  serve [-http ADDR] [-tcp ADDR] [-grpc ADDR] [-tls ADDR] [-authorize ADDR]
                                                servers that answer with this pod's name and the caller's address, and an
                                                external authoriser that lets pass who sends x-pass: yes
  ask [-n N] [-every D] [-timeout D] [-until-eof] [-header NAME:VALUE] [-show NAME] URL...
                                                asks each N times, or until standard input ends, on connections of their
                                                own; one line for each answer
                                                http://HOST:PORT/PATH, tcp://HOST:PORT (a line), grpc://HOST:PORT (health),
                                                tls://SERVERNAME@HOST:PORT (a line, to whoever answers)
  hold [-for D] [-every D] [-until-eof] ADDR    one TCP connection, kept; says how many lines came back
  lookup NAME                                   the addresses that the resolver has for NAME
  files PATH...                                 every file below, with its size and a checksum; nothing for what is missing
  host COMMAND...                               a command of the node, in a privileged pod with the node's processes
  kill WORD...                                  ends all processes whose command line begins with these words, by SIGKILL
  sleep                                         waits for SIGTERM
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	arguments := os.Args[2:]
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(arguments)
	case "ask":
		err = ask(arguments)
	case "hold":
		err = hold(arguments)
	case "lookup":
		err = lookup(arguments)
	case "files":
		err = files(arguments)
	case "host":
		err = host(arguments)
	case "kill":
		err = kill(arguments)
	case "sleep":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		<-stop
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "toolbox:", err)
		os.Exit(1)
	}
}

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// ask asks every address n times and prints a line for each answer: "ok URL DURATION ANSWER" or "failed URL DURATION REASON".
// It fails if any did.
func ask(arguments []string) error {
	flags := flag.NewFlagSet("ask", flag.ExitOnError)
	n := flags.Int("n", 1, "how many times")
	every := flags.Duration("every", 0, "time from one start to the next")
	timeout := flags.Duration("timeout", 5*time.Second, "time for each")
	untilEnd := flags.Bool("until-eof", false, "go on until standard input ends")
	headers := http.Header{}
	flags.Func("header", "of each HTTP request, as name:value", func(text string) error {
		name, value, found := strings.Cut(text, ":")
		if !found {
			return fmt.Errorf("%q is not name:value", text)
		}
		headers.Add(name, value)
		return nil
	})
	show := flags.String("show", "", "header of each HTTP answer that is printed")
	flags.Parse(arguments)
	if flags.NArg() == 0 {
		return fmt.Errorf("ask wants an address")
	}
	ended := inputEnds(*untilEnd)
	failures, asked := 0, 0
	for ; asked < *n || *untilEnd && !ended(); asked++ {
		for _, url := range flags.Args() {
			began := time.Now()
			answer, err := once(url, *timeout, headers, *show)
			took := time.Since(began).Round(100 * time.Microsecond)
			if err != nil {
				failures++
				fmt.Println("failed", url, took, err)
			} else {
				fmt.Println("ok", url, took, strings.TrimSpace(answer))
			}
			time.Sleep(time.Until(began.Add(*every)))
		}
	}
	if failures > 0 {
		return fmt.Errorf("%d of %d failed", failures, asked*flags.NArg())
	}
	return nil
}

// inputEnds returns a function that says whether standard input has ended, if it is to be read at all.
func inputEnds(read bool) func() bool {
	var ended atomic.Bool
	if read {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			ended.Store(true)
		}()
	}
	return ended.Load
}

// once asks one address, by the protocol that its scheme names.
func once(url string, timeout time.Duration, headers http.Header, show string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	scheme, address, _ := strings.Cut(url, "://")
	switch scheme {
	case "http":
		return get(ctx, url, headers, show)
	case "tcp":
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return "", err
		}
		return line(ctx, connection)
	case "tls":
		name, address, _ := strings.Cut(address, "@")
		dialer := tls.Dialer{Config: &tls.Config{ServerName: name, InsecureSkipVerify: true}}
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return "", err
		}
		return line(ctx, connection)
	case "grpc":
		return health(ctx, address)
	}
	return "", fmt.Errorf("%q is none of http, tcp, tls and grpc", scheme)
}

// get makes one HTTP request on a connection of its own. Any status is an answer, and stands first in it.
func get(ctx context.Context, url string, headers http.Header, show string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	request.Header = headers
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	answer := fmt.Sprint(response.StatusCode, " ", strings.TrimSpace(string(body)))
	if show != "" {
		answer += fmt.Sprintf(" %s=%q", show, response.Header.Values(show))
	}
	return answer, err
}

// line sends one line and reads one.
func line(ctx context.Context, connection net.Conn) (string, error) {
	defer connection.Close()
	if deadline, ok := ctx.Deadline(); ok {
		connection.SetDeadline(deadline)
	}
	if _, err := fmt.Fprintln(connection, "hello"); err != nil {
		return "", err
	}
	return bufio.NewReader(connection).ReadString('\n')
}

// health makes one gRPC health check on a connection of its own.
func health(ctx context.Context, address string) (string, error) {
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	answer, err := grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return "", err
	}
	return answer.GetStatus().String(), nil
}

// hold keeps one connection and sends a line now and then; it fails when an answer stays out.
func hold(arguments []string) error {
	flags := flag.NewFlagSet("hold", flag.ExitOnError)
	duration := flags.Duration("for", 10*time.Second, "how long")
	every := flags.Duration("every", 100*time.Millisecond, "time between lines")
	untilEnd := flags.Bool("until-eof", false, "go on until standard input ends")
	flags.Parse(arguments)
	if flags.NArg() != 1 {
		return fmt.Errorf("hold wants one address")
	}
	connection, err := net.DialTimeout("tcp", flags.Arg(0), 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	answers := bufio.NewReader(connection)
	ended := inputEnds(*untilEnd)
	began, came := time.Now(), 0
	for time.Since(began) < *duration || *untilEnd && !ended() {
		connection.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := fmt.Fprintln(connection, "still here"); err != nil {
			return fmt.Errorf("after %d answers: %w", came, err)
		}
		answer, err := answers.ReadString('\n')
		if err != nil {
			return fmt.Errorf("after %d answers: %w", came, err)
		}
		came++
		if came == 1 {
			fmt.Print("connected: ", answer)
		}
		time.Sleep(*every)
	}
	fmt.Println("ok", came, "answers")
	return nil
}

// lookup prints the addresses of a name, one a line.
func lookup(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("lookup wants one name")
	}
	addresses, err := net.LookupHost(arguments[0])
	for _, address := range addresses {
		fmt.Println(address)
	}
	return err
}

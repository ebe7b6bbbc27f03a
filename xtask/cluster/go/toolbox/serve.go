package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	checks "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// serve runs every server whose address is given, until SIGTERM, which it obeys at once.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	httpAddress := flags.String("http", "", "address of the HTTP server, for example :8080")
	tcpAddress := flags.String("tcp", "", "address of the line server")
	grpcAddress := flags.String("grpc", "", "address of the gRPC health server")
	tlsAddress := flags.String("tls", "", "address of the line server behind TLS, with a certificate that nobody signed")
	authorizer := flags.String("authorize", "", "address of the external authoriser")
	flags.Parse(arguments)
	// For those who measure how long a pod's start takes.
	fmt.Println("started", time.Now().UnixNano())
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	failed := make(chan error, 5)
	start := func(address string, run func(net.Listener) error) error {
		if address == "" {
			return nil
		}
		listener, err := net.Listen("tcp", address)
		if err == nil {
			go func() { failed <- run(listener) }()
		}
		return err
	}
	if err := start(*httpAddress, func(l net.Listener) error { return serveHTTP(l, name) }); err != nil {
		return err
	}
	if err := start(*tcpAddress, func(l net.Listener) error { return serveLines(l, name) }); err != nil {
		return err
	}
	if err := start(*grpcAddress, serveHealth); err != nil {
		return err
	}
	if err := start(*tlsAddress, func(l net.Listener) error { return serveTLS(l, name) }); err != nil {
		return err
	}
	if err := start(*authorizer, authorize); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		return err
	case <-stop:
		return nil
	}
}

// serveHTTP answers every path with this pod's name and the caller's address. The query "wait=500ms" delays the answer, and
// "show=x-name" adds the request's header of that name.
func serveHTTP(listener net.Listener, name string) error {
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wait, err := time.ParseDuration(r.URL.Query().Get("wait")); err == nil {
			time.Sleep(wait)
		}
		fmt.Fprintf(w, "%s sees %s", name, r.RemoteAddr)
		for _, header := range r.URL.Query()["show"] {
			fmt.Fprintf(w, " %s=%q", header, r.Header.Values(header))
		}
		fmt.Fprintln(w)
	}))
}

// serveLines answers each line with this pod's name, the caller's address and the line.
func serveLines(listener net.Listener, name string) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			lines := bufio.NewScanner(connection)
			for lines.Scan() {
				if _, err := fmt.Fprintf(connection, "%s sees %s: %s\n", name, connection.RemoteAddr(), lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}

// serveTLS is serveLines behind TLS, with a certificate of its own making.
func serveTLS(listener net.Listener, name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{name}}
	certificate, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return err
	}
	own := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	return serveLines(tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{own}}), name)
}

func serveHealth(listener net.Listener) error {
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, checks.NewServer())
	return server.Serve(listener)
}

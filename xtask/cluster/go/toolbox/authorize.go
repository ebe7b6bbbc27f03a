package main

import (
	"bytes"
	"net"

	"google.golang.org/grpc"
)

// raw hands messages over as they are on the wire: for two answers nothing has to be generated.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }

// part is a field of protobuf's wire format that holds bytes, of which there are fewer than 128.
func part(field byte, content ...[]byte) []byte {
	joined := bytes.Join(content, nil)
	return append([]byte{field<<3 | 2, byte(len(joined))}, joined...)
}

// authorize answers envoy.service.auth.v3.Authorization/Check, whatever the method is called: who sends x-pass: yes goes on as x-user: ann,
// without that header; anybody else gets 418.
func authorize(listener net.Listener) error {
	header := func(name, value string) []byte { return part(1, part(1, []byte(name)), part(2, []byte(value))) }
	allowed := append(part(1), part(3, part(2, header("x-user", "ann")), part(5, []byte("x-pass")))...)
	status := part(1, []byte{1 << 3, 418&127 | 128, 418 >> 7})
	denied := append(part(1, []byte{1 << 3, 7}), part(2, status, part(3, []byte("not today")))...)
	passes := append(part(1, []byte("x-pass")), part(2, []byte("yes"))...)
	check := func(_ any, stream grpc.ServerStream) error {
		var asked []byte
		if err := stream.RecvMsg(&asked); err != nil {
			return err
		}
		answer := denied
		if bytes.Contains(asked, passes) {
			answer = allowed
		}
		return stream.SendMsg(&answer)
	}
	return grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(check)).Serve(listener)
}

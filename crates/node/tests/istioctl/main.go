// Reads a /config_dump as istioctl does, by istioctl's own decoder, and prints what `istioctl ztunnel-config`
// would show of it. For the test tests/mesh/dump.rs, which finds it by LENO_CONFIGDUMP.
package main

import (
	"fmt"
	"io"
	"os"

	"istio.io/istio/istioctl/pkg/writer/ztunnel/configdump"
)

func show() error {
	dump, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	writer := &configdump.ConfigWriter{Stdout: os.Stdout, FullDump: dump}
	if err := writer.Prime(dump); err != nil {
		return err
	}
	if err := writer.PrintFullSummary(true); err != nil {
		return err
	}
	return writer.PrintPolicyDump(configdump.PolicyFilter{}, "json")
}

func main() {
	if err := show(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

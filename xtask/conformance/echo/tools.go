//go:build tools

// What the suite's pods run: Istio's echo server, and the client that asks it.
package echo

import (
	_ "istio.io/istio/pkg/test/echo/cmd/client"
	_ "istio.io/istio/pkg/test/echo/cmd/server"
)

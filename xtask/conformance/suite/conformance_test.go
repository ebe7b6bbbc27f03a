// The Gateway API's own conformance suite, built as a program by `cargo xtask conformance`. What is to be run, and how the
// implementation is called, are the suite's own flags.
package suite

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) { conformance.RunConformance(t) }

package route

import (
	"bytes"
	"fmt"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestMessagesOfHTTP checks that TLS handshakes that fail, which anyone can cause, leave one line of a host, and that
// every other message of net/http is logged.
func TestMessagesOfHTTP(t *testing.T) {
	var out bytes.Buffer
	at := time.Now()
	h := &handshakes{to: hclog.New(&hclog.LoggerOptions{Output: &out}), now: func() time.Time { return at }}
	l := log.New(h, "", 0)
	for i := range 50 {
		l.Printf("http: TLS handshake error from 10.0.0.%d:%d: EOF", i%2, 1000+i)
	}
	for i := range 2 {
		l.Printf("http: panic serving 10.0.0.1:%d: oh\ngoroutine 1 [running]:", i)
	}
	for what, times := range map[string]int{"from 10.0.0.0:1000: EOF": 1, "from 10.0.0.1:1001: EOF": 1, "handshake": 2,
		"panic": 2, "goroutine 1": 2} {
		if n := strings.Count(out.String(), what); n != times {
			t.Errorf("%q is logged %d times, want %d: %s", what, n, times, fmt.Sprintf("%.600s", out.String()))
		}
	}
}

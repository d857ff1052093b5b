package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestTriesAreBounded checks that neither many endpoints nor a long error make what is kept grow without limit, and
// that old failures give way to new ones.
func TestTriesAreBounded(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	var x tries
	for i := range 2 * maxTries {
		x.failed(tryKey{addr: fmt.Sprint(i)}, errors.New("x\xff"+strings.Repeat("é", maxTry)), now, unreachedAfter)
	}
	all := x.list(now.Add(unreachedAfter))
	if len(all) != maxTries {
		t.Errorf("%d are kept, want %d", len(all), maxTries)
	}
	if e := all[0].Error; len(e) > maxTry || !utf8.ValidString(e) {
		t.Errorf("an error has %d bytes: %q", len(e), e)
	}
	now = now.Add(triesKept + time.Second)
	x.failed(tryKey{addr: "new"}, errors.New("refused"), now, unreachedAfter)
	if len(x.all) != 1 {
		t.Errorf("%d are kept after a while, want the new one", len(x.all))
	}
}

// TestTriesOfOneEndpoint checks that of several connections to one address the one that failed first is listed, with
// its error, and that the list is in order.
func TestTriesOfOneEndpoint(t *testing.T) {
	began := time.UnixMilli(1_000_000)
	var x tries
	for i, k := range []tryKey{{node: 2, addr: "a", bucket: "x", connection: 1}, {node: 2, addr: "a", bucket: "a"},
		{node: 2, addr: "a", bucket: "x"}, {node: 10, addr: "a"}, {node: 1, addr: "b"}, {node: 1, addr: "a"}} {
		x.failed(k, fmt.Errorf("failure %d", i), began.Add(time.Duration(i)*time.Millisecond), unreachedAfter)
	}
	x.failed(tryKey{node: 1, addr: "c"}, errors.New("too new"), began.Add(time.Second), unreachedAfter)
	var got []string
	for _, u := range x.list(began.Add(unreachedAfter + time.Second/2)) {
		got = append(got, fmt.Sprintf("%d %s %s", u.Node, u.Address, u.Error))
	}
	if want := "1 a failure 5, 1 b failure 4, 2 a failure 0, 10 a failure 3"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSteady checks that what differs between two attempts is left out of an error, and what gRPC adds to it.
func TestSteady(t *testing.T) {
	for text, want := range map[string]string{
		`connect to 10.0.0.4:9542: rpc error: code = Unavailable desc = connection error: desc = "transport: Error while ` +
			`dialing: dial tcp 10.0.0.4:9542: connect: no route to host"`: "dial tcp 10.0.0.4:9542: connect: no route to host",
		`connect to [::1]:9542: rpc error: code = Unavailable desc = connection error: desc = "transport: authentication ` +
			`handshake failed: read tcp [::1]:40814->[::1]:9542: read: connection reset by peer"`: "authentication handshake " +
			"failed: read tcp [::1]:9542: read: connection reset by peer",
		`connect to i1:9542: rpc error: code = Unavailable desc = connection error: desc = "transport: authentication ` +
			`handshake failed: tls: failed to verify certificate: x509: certificate is valid for \"a\", not i1"`: "" +
			`authentication handshake failed: tls: failed to verify certificate: x509: certificate is valid for "a", not i1`,
		`connect to a:1: refused by the receiver: bucket "b" is of another uuid`: `refused by the receiver: bucket "b" is of ` +
			`another uuid`,
	} {
		if got := steady(text, strings.TrimSuffix(strings.Fields(text)[2], ":")); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", text, got, want)
		}
	}
}

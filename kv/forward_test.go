package kv

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A failover sent to another member than the leader has as much time as one sent to the leader.
func TestConcurrentFailoverHasItsTime(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	end, err := g.nodes["kv1"].cluster.alone(within(t))
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		status int
		body   string
	}
	answered := make(chan answer, 1)
	go func() {
		form := strings.NewReader(url.Values{"otpNode": {otpPrefix + "kv3"}}.Encode())
		req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+g.nodes["kv2"].AdminAddr()+pathGraceful,
			form)
		if err != nil {
			answered <- answer{body: err.Error()}
			return
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.SetBasicAuth(testUser, testPassword)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			answered <- answer{body: err.Error()}
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answered <- answer{resp.StatusCode, string(body)}
	}()
	select {
	case a := <-answered:
		t.Errorf("%d %s: while the leader was busy", a.status, a.body)
		end()
		return
	case <-time.After(peerTimeout + time.Second): // other requests between nodes time out earlier
	}
	end()
	if a := <-answered; a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
	if _, member := g.nodes["kv1"].View().Map.Node("kv3"); member {
		t.Error("kv3 is a member still")
	}
}

package gocb

import (
	"bytes"
	"crypto/tls"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/hashicorp/go-hclog"

	"tidemark/projector/feed"
)

// gocbcore sends its password to all managers in a map: it gets none for those that were not configured, unless they
// prove their identity, and none at all if no manager was configured.
func TestPasswordGoesToTrustedManagersOnly(t *testing.T) {
	checked, anyone := &tls.Config{}, &tls.Config{InsecureSkipVerify: true} //nolint:gosec // only looked at
	for _, tt := range []struct {
		name     string
		service  gocbcore.ServiceType
		endpoint string
		managers []string
		tls      *tls.Config
		gets     bool
	}{
		{"a node", gocbcore.MemdService, "10.0.0.2:11210", nil, nil, true},
		{"a configured manager", gocbcore.MgmtService, "http://10.0.0.1:8091", []string{"10.0.0.1:8091"}, nil, true},
		{"whom a map names", gocbcore.MgmtService, "http://10.0.0.2:8091", []string{"10.0.0.1:8091"}, nil, false},
		{"whom a map names, checked", gocbcore.MgmtService, "https://10.0.0.2:18091", []string{"10.0.0.1:18091"}, checked,
			true},
		{"whom a map names, unchecked", gocbcore.MgmtService, "https://10.0.0.2:18091", []string{"10.0.0.1:18091"}, anyone,
			false},
		{"no manager was named", gocbcore.MgmtService, "https://10.0.0.2:18091", nil, checked, false},
		{"no address", gocbcore.MgmtService, "http://[::1", []string{"10.0.0.1:8091"}, nil, false},
	} {
		who := credentials{user: "u", password: "secret", tls: tt.tls, managers: tt.managers}
		got, err := who.Credentials(gocbcore.AuthCredsRequest{Service: tt.service, Endpoint: tt.endpoint})
		if err != nil || len(got) != 1 || (got[0].Password == "secret") != tt.gets || (got[0].Username == "u") != tt.gets {
			t.Errorf("%s: %+v %v", tt.name, got, err)
		}
	}
}

// stuck is an agent whose Close blocks until it is released.
type stuck chan struct{}

func (s stuck) Close() error { <-s; return nil }

// An agent that does not end is abandoned after Config.DeadAfter, which is logged; no caller waits for gocbcore
// longer than that.
func TestAgentThatDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Conn{conf: feed.Config{DeadAfter: 7 * time.Second, Addr: "kv1", Logger: hclog.New(&hclog.LoggerOptions{
			Output: &log})}}
		agent, began := make(stuck), time.Now()
		c.closeAgent(agent)
		if took := time.Since(began); took != c.conf.DeadAfter || !strings.Contains(log.String(), "left behind") {
			t.Errorf("left after %s of %s; the log says %q", took, c.conf.DeadAfter, log.String())
		}
		close(agent)
		log.Reset()
		began = time.Now()
		c.closeAgent(agent)
		if took := time.Since(began); took != 0 || log.Len() > 0 {
			t.Errorf("one that closes at once took %s; the log says %q", took, log.String())
		}
	})
}

package kvclient_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"tidemark/kv/connstr"
	"tidemark/kv/kvclient"
)

// dns answers one request, and records it.
type dns struct {
	asked   []string
	records []*net.SRV
	err     error
	hangs   bool
}

func (d *dns) LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error) {
	d.asked = append(d.asked, fmt.Sprintf("_%s._%s.%s", service, proto, name))
	if d.hangs {
		if _, ok := ctx.Deadline(); !ok {
			return "", nil, errors.New("it is asked without a deadline")
		}
		d.err = context.DeadlineExceeded
	}
	return "", d.records, d.err
}

func TestSeeds(t *testing.T) {
	two := []*net.SRV{{Target: "kv1.example.org.", Port: 11210}, {Target: "kv2.example.org.", Port: 31210}}
	many := slices.Repeat(two, connstr.MaxHosts)
	for _, tt := range []struct {
		text  string
		dns   *dns
		asked string
		want  string
		note  string
	}{
		{"couchbase://db.example.org", &dns{records: two}, "_couchbase._tcp.db.example.org",
			"kv1.example.org:11210 kv2.example.org:31210", ""},
		{"couchbases://db.example.org", &dns{records: two[:1]}, "_couchbases._tcp.db.example.org",
			"kv1.example.org:11210", ""},
		{"couchbase://db.example.org", &dns{err: &net.DNSError{IsNotFound: true}}, "_couchbase._tcp.db.example.org",
			"db.example.org:11210", ""},
		{"couchbases://db.example.org", &dns{err: &net.DNSError{IsNotFound: true}}, "_couchbases._tcp.db.example.org",
			"db.example.org:11207", ""},
		{"couchbase://db.example.org", &dns{err: errors.New("server misbehaving")}, "_couchbase._tcp.db.example.org",
			"db.example.org:11210", "server misbehaving"},
		{"couchbase://db.example.org", &dns{hangs: true}, "_couchbase._tcp.db.example.org", "db.example.org:11210",
			"deadline"},
		{"couchbase://db.example.org", &dns{records: []*net.SRV{{Target: "."}}}, "_couchbase._tcp.db.example.org",
			"db.example.org:11210", "has no node"},
		{"couchbase://db.example.org", &dns{records: many}, "_couchbase._tcp.db.example.org", "", "128 nodes"},
		{"couchbase://db.example.org:11210", &dns{records: two}, "", "db.example.org:11210", ""},
		{"couchbase://10.0.0.1", &dns{records: two}, "", "10.0.0.1:11210", ""},
		{"couchbase://a,b", &dns{records: two}, "", "a:11210 b:11210", ""},
		{"db.example.org", &dns{records: two}, "", "db.example.org:11210", ""},
	} {
		spec, err := connstr.Parse(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		addrs, note := kvclient.Seeds(t.Context(), spec, spec.TLS(false), tt.dns)
		if got := strings.Join(addrs, " "); tt.want != "" && got != tt.want || len(addrs) > connstr.MaxHosts {
			t.Errorf("%s: %s, want %s", tt.text, got, tt.want)
		}
		if got := strings.Join(tt.dns.asked, " "); got != tt.asked {
			t.Errorf("%s: %q was asked for, want %q", tt.text, got, tt.asked)
		}
		if (note == "") != (tt.note == "") || !strings.Contains(note, tt.note) {
			t.Errorf("%s: note %q, want %q", tt.text, note, tt.note)
		}
	}
}

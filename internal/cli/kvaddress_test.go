package cli

import (
	"errors"
	"io"
	"strings"
	"testing"

	"tidemark/kv/kvclient"
	"tidemark/projector"
)

// TestTargets checks that contradictions between --kv and related flags are rejected.
func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		name, kv, bucket, network string
		tls                       kvclient.TLSFiles
		seeds, wantBucket         string
		managers                  string
		wantNetwork               string
		encrypted                 bool
		refused                   string
	}{
		{name: "host and port", kv: "10.0.0.1:12000", bucket: "b", seeds: "10.0.0.1:12000", wantBucket: "b"},
		{name: "no port", kv: "10.0.0.1", bucket: "b", seeds: "10.0.0.1:11210", wantBucket: "b"},
		{name: "no port, TLS", kv: "10.0.0.1", bucket: "b", tls: kvclient.TLSFiles{Enabled: true}, seeds: "10.0.0.1:11207",
			wantBucket: "b", encrypted: true},
		{name: "two", kv: "couchbase://10.0.0.1,10.0.0.2:7/b", seeds: "10.0.0.1:11210 10.0.0.2:7", wantBucket: "b"},
		{name: "TLS by scheme", kv: "couchbases://10.0.0.1/b?network=external", bucket: "b", network: "external",
			seeds: "10.0.0.1:11207", wantBucket: "b", wantNetwork: "external", encrypted: true},
		{name: "TLS by scheme, unchecked", kv: "couchbases://10.0.0.1/b", tls: kvclient.TLSFiles{SkipVerify: true},
			seeds: "10.0.0.1:11207", wantBucket: "b", encrypted: true},
		{name: "two buckets", kv: "couchbase://a/b", bucket: "c", refused: "give one of them"},
		{name: "two networks", kv: "couchbase://a/b?network=x", network: "y", refused: "give one of them"},
		{name: "TLS flags, scheme without TLS", kv: "couchbase://a/b", tls: kvclient.TLSFiles{Enabled: true}, refused: "couchbases://"},
		{name: "no bucket", kv: "couchbase://10.0.0.1", refused: "--bucket"},
		{name: "REST", kv: "http://10.0.0.1", bucket: "b", managers: "10.0.0.1:8091", wantBucket: "b"},
		{name: "REST and TLS", kv: "https://10.0.0.1,10.0.0.2/b", managers: "10.0.0.1:18091 10.0.0.2:18091", wantBucket: "b",
			encrypted: true},
		{name: "REST without TLS, and TLS", kv: "http://a/b", tls: kvclient.TLSFiles{Enabled: true}, refused: "https://"},
		{name: "no node", bucket: "b", refused: "--kv HOST"},
	} {
		f := kvFlags{kv: tt.kv, bucket: tt.bucket, network: tt.network, user: "u", tls: kvTLSFlags{tt.tls},
			stderr: func() io.Writer { return io.Discard }}
		seeds, opt, err := f.target(t.Context())
		if tt.refused != "" {
			if u := (usageError{}); !errors.As(err, &u) || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.refused)
			}
			continue
		}
		if got := strings.Join(seeds, " "); err != nil || got != tt.seeds ||
			strings.Join(f.managers, " ") != tt.managers || (opt.Maps != nil) != (tt.managers != "") ||
			opt.Bucket != tt.wantBucket ||
			opt.Network != tt.wantNetwork || (opt.TLS != nil) != tt.encrypted {
			t.Errorf("%s: %s, bucket %q, network %q, TLS %t, %v", tt.name, got, opt.Bucket, opt.Network, opt.TLS != nil, err)
		}
	}
}

// TestProjectorKV checks that a projector accepts only one KV node, unless it serves all of a cluster.
func TestProjectorKV(t *testing.T) {
	for _, tt := range []struct {
		kv                   string
		tls                  kvclient.TLSFiles
		want, refused        string
		encrypted, all       bool
		network, wantNetwork string
	}{
		{kv: "10.0.0.4:11210", want: "10.0.0.4:11210"},
		{kv: "kv4", want: "kv4:11210"},
		{kv: "kv4", tls: kvclient.TLSFiles{Enabled: true}, want: "kv4:11207", encrypted: true},
		{kv: "couchbase://kv4", want: "kv4:11210"},
		{kv: "couchbases://kv4?network=external", want: "kv4:11207", encrypted: true, wantNetwork: "external"},
		{kv: "[::1]:11210", want: "[::1]:11210", network: "default", wantNetwork: "default"},
		{kv: "couchbase://kv4,kv5", refused: "one node"},
		{kv: "couchbase://kv4/world", refused: "a bucket"},
		{kv: "couchbase://kv4", tls: kvclient.TLSFiles{Enabled: true}, refused: "couchbases://"},
		{kv: "kv4:8091", refused: "11210"},
		{kv: "http://kv4", want: "kv4:8091"},
		{kv: "https://kv4:9000?network=external", want: "kv4:9000", encrypted: true, wantNetwork: "external"},
		{kv: "http://kv4,kv5", refused: "one node"},
		{kv: "couchbase://kv4,kv5", all: true, want: "kv4:11210"},
		{kv: "http://kv4,kv5", all: true, want: "kv4:8091"},
		{kv: "couchbase://kv4/world", all: true, refused: "a bucket"},
	} {
		cfg := projector.Config{KV: tt.kv, KVNetwork: tt.network}
		_, err := projectorKV(&cfg, &kvTLSFlags{tt.tls}, tt.all)
		if tt.refused != "" {
			if u := (usageError{}); !errors.As(err, &u) || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v, want %q", tt.kv, err, tt.refused)
			}
		} else if err != nil || cfg.KV != tt.want || (cfg.KVTLS != nil) != tt.encrypted || cfg.KVNetwork != tt.wantNetwork {
			t.Errorf("%s: %s, TLS %t, network %q, %v", tt.kv, cfg.KV, cfg.KVTLS != nil, cfg.KVNetwork, err)
		}
	}
}

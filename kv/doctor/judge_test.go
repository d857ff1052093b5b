package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// now is the time of these tests.
var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// healthy returns a node without faults.
func healthy() *facts {
	f := &facts{addr: "kv1:11210", mechanism: "SCRAM-SHA512", features: mcbp.Features(), latency: time.Millisecond,
		version: "6.0.4-3082", seqnos: make([]mcbp.VBucketSeqno, 1), manifestErr: kvclient.ErrNotSupported,
		stats: statFacts{clocked: true,
			general: map[string]string{statBucketType: "persistent", statEviction: "value_only"}},
		dcp: dcpFacts{tried: true, streamed: true, controls: wantedControls()}}
	f.stats.details.maxCAS = uint64(now.UnixNano())
	return f
}

func status(op mcbp.Opcode, s mcbp.Status) error {
	return kvclient.NewStatusError(mcbp.Frame{Header: mcbp.Header{Magic: mcbp.MagicResponse, Op: op,
		VBucketOrStatus: uint16(s)}})
}

// TestJudgements checks that each possible fault of a node is found and named, with advice.
func TestJudgements(t *testing.T) {
	refused := status(mcbp.OpDCPControl, mcbp.StatusInvalid)
	denied := func(op mcbp.Opcode) error { return status(op, mcbp.StatusNoAccess) }
	busy := func(op mcbp.Opcode) error { return status(op, mcbp.StatusTemporary) }
	controlFails := func(failing ...string) func(*facts) {
		return func(f *facts) {
			for i, c := range f.dcp.controls {
				for _, k := range failing {
					if c.key == k || c.key+"="+c.value == k {
						f.dcp.controls[i].err = refused
					}
				}
			}
		}
	}
	certificate := func(from, until time.Time, names ...string) func(*facts) {
		return func(f *facts) {
			f.tls.state = &tls.ConnectionState{Version: tls.VersionTLS13}
			f.tls.certs = []*x509.Certificate{{NotBefore: from, NotAfter: until, DNSNames: names,
				Subject: pkix.Name{CommonName: "cn"}}}
		}
	}
	day := 24 * time.Hour
	for _, tt := range []struct {
		name, check string
		result      Result
		seen        string
		edit        func(*facts)
	}{
		{"nothing", "", OK, "", func(*facts) {}},
		{"hangs at STAT", checkReach, Fails, "STAT got no answer", func(f *facts) {
			f.err, f.silent = context.DeadlineExceeded, "STAT"
		}},
		{"hangs at once", checkReach, Fails,
			"it hangs", func(f *facts) { f.err, f.features = context.DeadlineExceeded, nil }},
		{"is not there", checkReach, Fails, "connection refused", func(f *facts) {
			f.err, f.features = &net.OpError{Op: "dial", Err: errors.New("connection refused")}, nil
		}},
		{"is no KV node", checkReach, Fails, "does not speak the memcached protocol", func(f *facts) {
			f.err, f.features = mcbp.ErrMagic, nil
		}},
		{"wrong password", checkLogin, Fails, "AUTH_ERROR", func(f *facts) {
			f.err, f.features = status(mcbp.OpSASLStep, mcbp.StatusAuthError), nil
		}},
		{"no bucket", checkLogin, Fails, "no such bucket", func(f *facts) {
			f.err, f.features = status(mcbp.OpSelectBucket, mcbp.StatusKeyNotFound), nil
		}},
		{"no SELECT_BUCKET", checkLogin, Fails, "lacks a required feature", func(f *facts) {
			f.err, f.features = kvclient.ErrNotSupported, nil
		}},
		{"busy at the login", checkLogin, Warning,
			"not now", func(f *facts) { f.err, f.features = busy(mcbp.OpHello), nil }},
		{"an unknown CA", checkTLS, Fails, "of other.example.org, until 2027", func(f *facts) {
			certificate(now, now.Add(365*day), "other.example.org")(f)
			f.err, f.features = &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, nil
		}},
		{"a certificate", checkTLS, OK, "valid until 2027", certificate(now.Add(-day), now.Add(100*day), "kv1")},
		{"a common name", checkTLS, OK, "", func(f *facts) {
			certificate(now.Add(-day), now.Add(100*day))(f)
			f.tls.certs[0].Subject.CommonName = "KV1"
		}},
		{"it ends soon", checkTLS, Warning, "valid until 2026-11-26", certificate(now.Add(-day), now.Add(3*day), "kv1")},
		{"it begins later", checkTLS, Warning, "from 2026-11-24 on", certificate(now.Add(day), now.Add(100*day), "kv1")},
		{"unchecked", checkTLS, Warning, "was not checked", func(f *facts) {
			certificate(now.Add(-day), now.Add(100*day), "kv1")(f)
			f.tls.unchecked = true
		}},
		{"in the clear", checkTLS, Warning, "in the clear", func(f *facts) { f.addr = "10.0.0.4:11210" }},
		{"here", checkTLS, OK, "this machine", func(f *facts) { f.addr = "127.0.0.1:11210" }},
		{"memcached", checkMap, Fails, "type Memcached", func(f *facts) {
			f.configErr = fmt.Errorf("%w: %w", mcbp.ErrConfig, mcbp.ErrNoVBuckets)
		}},
		{"no right to the map", checkMap, Fails,
			"NO_ACCESS", func(f *facts) { f.configErr = denied(mcbp.OpGetClusterConfig) }},
		{"no map yet", checkMap, Warning, "no map yet", func(f *facts) {
			f.configErr = status(mcbp.OpGetClusterConfig, mcbp.StatusKeyNotFound)
		}},
		{"an odd map", checkMap, Fails, "no usable map", func(f *facts) { f.configErr = mcbp.ErrConfig }},
		{"ephemeral", checkBucket, Warning,
			"nothing is on disk", func(f *facts) { f.stats.general[statBucketType] = "ephemeral" }},
		{"evicting", checkBucket, Warning, "auto_delete", func(f *facts) {
			f.stats.general[statBucketType], f.stats.general[statFullPolicy] = "ephemeral", "auto_delete"
		}},
		{"full eviction", checkBucket, OK, "full_eviction", func(f *facts) {
			f.stats.general[statEviction] = "full_eviction"
		}},
		{"warms up", checkWarmup, Warning, "still reading", func(f *facts) { f.stats.general[statDegraded] = "true" }},
		{"warms up, reported differently", checkWarmup, Warning,
			"still reading", func(f *facts) { f.stats.general[statWarmup] = "running" }},
		{"a disk that is almost full", checkDisk, Warning, "the bucket accepts no documents: 9 bytes", func(f *facts) {
			f.stats.general[mcbp.StatDiskTrouble] = "accepts no documents: 9 bytes"
		}},
		{"old", checkVersion, Fails, "4.6.5", func(f *facts) { f.version = "4.6.5-4742" }},
		{"of the future", checkVersion, Warning, "newer than", func(f *facts) { f.version = "9.0.0-1" }},
		{"odd version", checkVersion, OK, "unknown version", func(f *facts) { f.version = "unknown" }},
		{"version not reported", checkVersion, OK, "NO_ACCESS", func(f *facts) { f.versionErr = denied(mcbp.OpVersion) }},
		{"no xattrs", checkFeatures, Warning, "not granted: xattrs", func(f *facts) {
			f.features = []mcbp.Feature{mcbp.FeatureSelectBucket, mcbp.FeatureSnappy, mcbp.FeatureMutationToken,
				mcbp.FeatureCollections}
		}},
		{"5.1", checkFeatures, OK, "not needed: snappy, collections", func(f *facts) {
			f.features = []mcbp.Feature{mcbp.FeatureSelectBucket, mcbp.FeatureXattr, mcbp.FeatureMutationToken}
		}},
		{"no right to DCP", checkDCP, Fails,
			"DCP cannot be opened", func(f *facts) { f.dcp.openErr = denied(mcbp.OpDCPOpen) }},
		{"no DCP", checkDCP, Fails, "NOT_SUPPORTED", func(f *facts) {
			f.dcp.openErr = status(mcbp.OpDCPOpen, mcbp.StatusNotSupported)
		}},
		{"DCP not now", checkDCP, Warning, "not now", func(f *facts) { f.dcp.openErr = busy(mcbp.OpDCPOpen) }},
		{"no failover logs", checkDCP, Fails,
			"failover logs", func(f *facts) { f.dcp.logErr = denied(mcbp.OpDCPFailoverLog) }},
		{"no streams", checkDCP, Fails,
			"streams are refused", func(f *facts) { f.dcp.streamErr = denied(mcbp.OpDCPStreamReq) }},
		{"nothing active", checkDCP, OK, "no active vbucket", func(f *facts) { f.dcp.streamed = false }},
		{"no noops", checkControls, Fails, "noops are refused", controlFails(mcbp.ControlEnableNoop)},
		{"no interval", checkControls, Fails, "all intervals", controlFails(mcbp.ControlNoopInterval)},
		{"long intervals", checkControls, Warning, "every 20 s", controlFails(mcbp.ControlNoopInterval + "=5")},
		{"longer intervals", checkControls, Warning, "every 120 s", controlFails(mcbp.ControlNoopInterval+"=5",
			mcbp.ControlNoopInterval+"=20")},
		{"no flow control", checkControls, Warning, "no flow control", controlFails(mcbp.ControlBufferSize)},
		{"no ends", checkControls, Warning, "no STREAM_END", controlFails(mcbp.ControlEndOnClose)},
		{"no seqnos", checkSeqnos, Fails, "NO_ACCESS", func(f *facts) { f.seqnosErr = denied(mcbp.OpGetAllVBSeqnos) }},
		{"seqnos not now", checkSeqnos, Warning, "not now", func(f *facts) { f.seqnosErr = busy(mcbp.OpGetAllVBSeqnos) }},
		{"no details", checkStats, Warning, "NO_ACCESS", func(f *facts) { f.stats.detailsErr = denied(mcbp.OpStat) }},
		{"no failovers", checkStats, Warning, "NO_ACCESS", func(f *facts) { f.stats.failoverErr = denied(mcbp.OpStat) }},
		{"short memory", checkPurge, Warning, "kept for 10m0s", func(f *facts) { f.stats.general[statPurgeAge] = "600" }},
		{"purged", checkPurge, OK, "were purged; they are kept for 24h", func(f *facts) {
			f.stats.details.purged, f.stats.general[statPurgeAge] = 1, "86400"
		}},
		{"clock ahead", checkClock, Warning, "1m0s ahead", func(f *facts) { f.stats.clock = time.Minute }},
		{"clock behind", checkClock, Warning, "1m0s behind", func(f *facts) { f.stats.clock = -time.Minute }},
		{"CAS ahead", checkClock, Warning, "1h0m0s ahead of now", func(f *facts) {
			f.stats.details.maxCAS = uint64(now.Add(time.Hour).UnixNano())
		}},
		{"a CAS of no time", checkClock, Warning, "CAS values", func(f *facts) { f.stats.details.maxCAS = 1<<64 - 1 }},
		{"no clock", checkClock, OK, "not reported", func(f *facts) { f.stats.clocked = false }},
		{"collections", checkCollections, OK, "1 collection in 1 scope", func(f *facts) {
			f.manifest, f.manifestErr = mcbp.DefaultManifest(), nil
		}},
		{"no manifest", checkCollections, Warning, "NO_COLLECTIONS_MANIFEST", func(f *facts) {
			f.manifestErr = status(mcbp.OpGetCollectionsManifest, mcbp.StatusNoManifest)
		}},
		{"no reads", checkReads, OK, "not needed", func(f *facts) { f.getErr = denied(mcbp.OpGet) }},
		{"slow", checkLatency, Warning, "more than 20ms", func(f *facts) { f.latency = time.Second }},
	} {
		f := healthy()
		if f.addr = "127.0.0.1:11210"; tt.check == checkTLS {
			f.addr = "kv1:11210"
		}
		if tt.edit(f); f.configErr == nil {
			f.config = mapOfOne()
		}
		r := judged([]*facts{f}, "")
		found := false
		for _, k := range r.Checks {
			if k.Why == "" || k.Result != OK && k.Do == "" || k.NodesCount != len(k.Nodes) {
				t.Errorf("%s: not whole: %+v", tt.name, k)
			}
			hit := k.Check == tt.check && k.Result == tt.result && strings.Contains(k.Seen, tt.seen)
			found = found || hit
			if !hit && k.Result != OK {
				t.Errorf("%s: also %+v", tt.name, k)
			}
		}
		if tt.check != "" && !found || (r.Err() != nil) != (tt.result == Fails) {
			t.Errorf("%s: %s %q was not found (%v) in:\n%s", tt.name, tt.check, tt.seen, r.Err(), shown(r))
		}
	}
}

// TestPurgeOfEphemeral checks that an ephemeral bucket has a purge interval of its own.
func TestPurgeOfEphemeral(t *testing.T) {
	f := healthy()
	f.stats.general = map[string]string{statBucketType: "ephemeral", statEviction: "value_only", statPurgeAge: "86400",
		statEphemeralPurgeAge: "600"}
	if got, ok := purge(f); !ok || got.result != Warning || !strings.Contains(got.seen, "10m0s") {
		t.Errorf("%+v", got)
	}
}

// mapOfOne returns the map of a node that has one vbucket and no name.
func mapOfOne() *mcbp.ClusterConfig {
	return &mcbp.ClusterConfig{Rev: 1, UUID: "u", NodesExt: []mcbp.ConfigNodeExt{{Services: map[string]int{"kv": 11210}}},
		VBucketServerMap: mcbp.VBucketServerMap{VBucketMap: [][]int{{0}}}}
}

func shown(r *Report) string {
	var b strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%s %s %v/%d: %s\n", c.Result, c.Check, c.Nodes, c.NodesCount, c.Seen)
	}
	return b.String()
}

// manyNodes returns a map of n nodes, each with an equal part of 1,024 vbuckets, and healthy nodes.
func manyNodes(n int) (config *mcbp.ClusterConfig, all []*facts) {
	config = &mcbp.ClusterConfig{Rev: 7, UUID: "u"}
	for i := range n {
		config.NodesExt = append(config.NodesExt, mcbp.ConfigNodeExt{Hostname: fmt.Sprintf("kv%d", i),
			Services: map[string]int{"kv": 11210}})
	}
	counts := make([]int, n)
	for vb := range 1024 {
		config.VBucketServerMap.VBucketMap = append(config.VBucketServerMap.VBucketMap, []int{vb % n})
		counts[vb%n]++
	}
	for i := range n {
		f := healthy()
		f.addr, f.config = fmt.Sprintf("kv%d:11210", i), config
		f.seqnos = make([]mcbp.VBucketSeqno, counts[i])
		all = append(all, f)
	}
	return config, all
}

func judged(all []*facts, network string) *Report {
	c := newCluster(all, nil, network, false)
	c.take(all)
	return c.judge(Options{Now: func() time.Time { return now }})
}

// TestJudgementsOfTheCluster checks the findings that need several nodes.
func TestJudgementsOfTheCluster(t *testing.T) {
	for _, tt := range []struct {
		name, check string
		result      Result
		seen        string
		nodes       int
		network     string
		edit        func(config *mcbp.ClusterConfig, all []*facts)
	}{
		{"nothing", checkMap, OK, "1024 vbuckets with 0 replicas on 4 nodes, revision 0.7", 0, "",
			func(*mcbp.ClusterConfig, []*facts) {}},
		{"a map that lags", checkMap, Warning, "revision 0.6, not 0.7", 1, "", func(c *mcbp.ClusterConfig, all []*facts) {
			old := *c
			old.Rev = 6
			all[2].config = &old
		}},
		{"another bucket", checkMap, Fails, "uuid other", 1, "", func(c *mcbp.ClusterConfig, all []*facts) {
			other := *c
			other.UUID = "other"
			all[2].config = &other
		}},
		{"no owner", checkMap, Fails, "2 of 1024 vbuckets have no node", 0, "", func(c *mcbp.ClusterConfig, _ []*facts) {
			c.VBucketServerMap.VBucketMap[5], c.VBucketServerMap.VBucketMap[9] = []int{-1}, []int{-1}
		}},
		{"moving", checkActive, Warning, "it has 255 active, 256 by the newest map", 1, "",
			func(_ *mcbp.ClusterConfig, all []*facts) { all[1].seqnos = all[1].seqnos[1:] }},
		{"one is dead", checkReach, Fails, "connection refused", 1, "", func(_ *mcbp.ClusterConfig, all []*facts) {
			*all[3] = facts{addr: all[3].addr, err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
		}},
		{"one is gone", checkReach, Warning, "it has no vbucket, and no connection", 1, "",
			func(c *mcbp.ClusterConfig, all []*facts) {
				for vb, chain := range c.VBucketServerMap.VBucketMap {
					if chain[0] == 3 {
						c.VBucketServerMap.VBucketMap[vb] = []int{0}
					}
				}
				all[0].seqnos = make([]mcbp.VBucketSeqno, 512)
				*all[3] = facts{addr: all[3].addr, err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
			}},
		{"no address outside", checkReach, Fails, `no address in network "external"`, 1, "external",
			func(c *mcbp.ClusterConfig, all []*facts) {
				for i := range all {
					c.NodesExt[i].AlternateAddresses = map[string]mcbp.AlternateAddress{"external": {Hostname: fmt.Sprint("kv", i)}}
				}
				c.NodesExt[1].AlternateAddresses = nil
			}},
		{"$HOST", checkMap, Warning, "does not know its own host name", 1, "", func(c *mcbp.ClusterConfig, all []*facts) {
			own := *c
			own.NodesExt = append([]mcbp.ConfigNodeExt(nil), c.NodesExt...)
			own.NodesExt[2].Hostname, own.NodesExt[2].ThisNode = "", true
			all[2].config = &own
		}},
	} {
		config, all := manyNodes(4)
		tt.edit(config, all)
		r := judged(all, tt.network)
		found := false
		for _, k := range r.Checks {
			found = found || k.Check == tt.check && k.Result == tt.result && strings.Contains(k.Seen, tt.seen) &&
				k.NodesCount == tt.nodes
		}
		if !found {
			t.Errorf("%s: %s %q of %d nodes was not found in:\n%s", tt.name, tt.check, tt.seen, tt.nodes, shown(r))
		}
	}
	_, all := manyNodes(4)
	all[1].err = &net.OpError{Op: "dial", Err: errors.New("no route")}
	all[0].config.NodesExt[1].AlternateAddresses = map[string]mcbp.AlternateAddress{"external": {Hostname: "outside"}}
	if r := judged(all, ""); !strings.Contains(r.Checks[0].Do, "--kv-network external") {
		t.Errorf("%+v", r.Checks[0])
	}
}

// TestBounded checks that a report does not grow with the cluster, and that each finding has its number of nodes.
func TestBounded(t *testing.T) {
	_, all := manyNodes(512)
	for i, f := range all {
		f.version = fmt.Sprintf("6.%d.0", i)
		f.stats.detailsErr = fmt.Errorf("%w: %s", mcbp.ErrConfig, strings.Repeat("x", i))
		f.stats.general[statBucketType] = strings.Repeat("long", 1000) + fmt.Sprint(i)
		if i%2 == 0 {
			f.err, f.silent = fmt.Errorf("failure %d of %s", i, f.addr), "GET"
		}
	}
	r := judged(all, "")
	counts := map[string]int{}
	for _, c := range r.Checks {
		counts[c.Check] += c.NodesCount
		if len(c.Nodes) > maxNamed || len(c.Seen) > maxSeen+200 {
			t.Errorf("%s: %d nodes named, %d bytes", c.Check, len(c.Nodes), len(c.Seen))
		}
	}
	b, err := json.Marshal(r)
	if err != nil || len(b) > 64<<10 || len(r.Checks) > maxFindings*len(topics()) {
		t.Errorf("%d bytes, %d findings, %v", len(b), len(r.Checks), err)
	}
	if counts[checkReach] != 512 || counts[checkVersion] != 256 || counts[checkLogin] != 512 {
		t.Errorf("findings of %v nodes", counts)
	}
}

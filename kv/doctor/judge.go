package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// Thresholds of warnings.
const (
	expiresSoon = 30 * 24 * time.Hour
	clockApart  = 5 * time.Second
	slowAnswer  = 20 * time.Millisecond
	shortPurge  = time.Hour
)

// rightsPage is the section of the docs on rights.
const rightsPage = "docs/couchbase.md, \"Rights of the user\""

// judgeEach judges the answers of each node by itself.
func judgeEach(p *reporter, all []*facts, o Options) {
	judges := []struct {
		check string
		judge func(*facts) (finding, bool)
	}{
		{checkBucket, bucketKind}, {checkWarmup, warmup}, {checkDisk, disk}, {checkVersion, versionOf},
		{checkFeatures, features}, {checkDCP, dcp}, {checkSeqnos, seqnos}, {checkStats, statistics}, {checkPurge, purge},
		{checkClock, clocks(o.Now())}, {checkCollections, collections}, {checkReads, reads},
	}
	for _, j := range judges {
		p.each(j.check, all, j.judge)
	}
	for _, f := range all {
		controls(p, f)
	}
	latencies(p, all)
}

// refused reports whether err is a refusal by the node, so that the node is reachable.
func refused(err error) bool {
	return errors.Is(err, kvclient.ErrAuth) || errors.Is(err, kvclient.ErrNoBucket) ||
		errors.Is(err, kvclient.ErrNotSupported) || errors.Is(err, kvclient.ErrTemporary) || answered(err) || untrusted(err)
}

// untrusted reports whether TLS failed with a node that is reachable.
func untrusted(err error) bool {
	var bad *tls.CertificateVerificationError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	return errors.As(err, &bad) || errors.As(err, &alert) || errors.As(err, &record)
}

// errorText returns an error as one sentence, without the parts that differ from node to node.
func (f *facts) errorText(err error) string {
	var se *kvclient.StatusError
	if errors.As(err, &se) {
		text := fmt.Sprintf("%v answered %v", se.Op, se.Status)
		var detail struct {
			Error struct{ Context string }
		}
		if json.Unmarshal([]byte(se.Detail), &detail) == nil && detail.Error.Context != "" {
			text += " (" + detail.Error.Context + ")"
		}
		return text
	}
	text, _, _ := strings.Cut(err.Error(), " (node "+f.addr) // also drops what all nodes share: user and bucket
	text = strings.ReplaceAll(text, f.addr, "the node")
	if host, _, err := net.SplitHostPort(f.addr); err == nil && len(host) > 1 {
		text = strings.ReplaceAll(text, host, "the node")
	}
	return text
}

// unreachable describes why a node is unreachable; encrypted means that TLS was requested.
func (f *facts) unreachable(encrypted bool) string {
	op := &net.OpError{}
	switch {
	case f.silent != "" && (errors.Is(f.err, context.DeadlineExceeded) || timedOut(f.err)):
		return "it hangs: the login succeeded, but " + f.silent + " got no answer"
	case f.silent != "":
		return "it closed the connection at " + f.silent + ": " + f.errorText(f.err)
	case errors.As(f.err, &op) && op.Op == "dial":
		return "no connection: " + f.errorText(op.Err)
	case errors.Is(f.err, context.DeadlineExceeded) || timedOut(f.err):
		return "it hangs: it accepts connections but does not answer, or the network drops its answers"
	case encrypted:
		return "it does not speak TLS at this port (11207 is the usual one with it, 11210 the one without): " +
			f.errorText(f.err)
	}
	return "it does not speak the memcached protocol at this port (is it one with TLS, which needs " +
		"couchbases:// or --kv-tls, or one for REST?): " + f.errorText(f.err)
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout() || errors.Is(err, kvclient.ErrSilent)
}

// login judges the login.
func login(user string) func(*facts) (finding, bool) {
	return func(f *facts) (finding, bool) {
		switch {
		case f.err == nil || f.features != nil:
			by := f.mechanism
			if by == "" {
				by = "the certificate"
			}
			return finding{result: OK, seen: fmt.Sprintf("as %q by %s", user, by)}, true
		case errors.Is(f.err, kvclient.ErrNoBucket):
			return finding{Fails, "there is no such bucket for this user: " + f.errorText(f.err),
				"check the bucket's name and that the user has a role for it (" + rightsPage +
					"): a node does not distinguish the two"}, true
		case errors.Is(f.err, kvclient.ErrAuth):
			return finding{Fails, "refused: " + f.errorText(f.err),
				"check --kv-user and the password; where only PLAIN is offered, as with LDAP, use TLS"}, true
		case errors.Is(f.err, kvclient.ErrNotSupported):
			return finding{Fails, f.errorText(f.err), "use an engine of 5.0 or later"}, true
		case errors.Is(f.err, kvclient.ErrTemporary):
			return finding{Warning, "not now: " + f.errorText(f.err),
				"the node is warming up or short of memory: try again later"}, true
		}
		return finding{}, false
	}
}

// isThisMachine reports whether an address is a loopback address.
func isThisMachine(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// encryption judges TLS: the dates and names of the certificate, and whether TLS is missing.
func encryption(now time.Time) func(*facts) (finding, bool) {
	return func(f *facts) (finding, bool) {
		switch {
		case f.err != nil && untrusted(f.err):
			return finding{Fails, "not trusted: " + f.errorText(f.err) + named(f.tls.certs),
				"give the cluster's CA by --kv-tls-ca (GET /pools/default/certificate), dial a name that the certificate has, or " +
					"have it renewed; against a port without TLS use couchbase://"}, true
		case f.features == nil:
			return finding{}, false
		case f.tls.state == nil:
			if isThisMachine(f.addr) {
				return finding{result: OK, seen: "none; the node is on this machine"}, true
			}
			return finding{Warning, "none: documents travel in the clear (the password does not)",
				"couchbases:// where the cluster has TLS (port 11207; Enterprise Edition); else one trusted network"}, true
		}
		leaf := slices.MinFunc(f.tls.certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		left := leaf.NotAfter.Sub(now)
		until := fmt.Sprintf("%s, valid until %s", tls.VersionName(f.tls.state.Version),
			leaf.NotAfter.UTC().Format(time.DateOnly))
		switch {
		case left < expiresSoon || now.Before(leaf.NotBefore):
			return finding{Warning, fmt.Sprintf("%s, from %s on", until, leaf.NotBefore.UTC().Format(time.DateOnly)),
				"renew it in time: new connections fail otherwise, open ones continue"}, true
		case len(f.tls.state.VerifiedChains) == 0 && !f.tls.names(f.addr):
			return finding{Warning, until + "; it does not name the host dialled, or was not checked" + named(f.tls.certs),
				"omit --kv-tls-skip-verify and give the CA: otherwise anyone on the path can read all data"}, true
		}
		return finding{result: OK, seen: until}, true
	}
}

// named lists the names in a certificate.
func named(certs []*x509.Certificate) string {
	if len(certs) == 0 {
		return ""
	}
	names := slices.Clone(certs[0].DNSNames)
	for _, ip := range certs[0].IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		names = []string{"common name " + certs[0].Subject.CommonName}
	}
	return cut(fmt.Sprintf(" (of %s, until %s)", strings.Join(names[:min(len(names), maxNamed)], ", "),
		certs[0].NotAfter.UTC().Format(time.DateOnly)))
}

// configFails judges a node that returned no map.
func configFails(f *facts) finding {
	switch err := f.configErr; {
	case errors.Is(err, mcbp.ErrNoVBuckets):
		return finding{Fails, "the bucket is of type Memcached: it has no vbuckets",
			"use a bucket of type Couchbase or Ephemeral"}
	case errors.Is(err, kvclient.ErrTemporary):
		return finding{Warning, "it has no map yet: " + f.errorText(err),
			"the node has not received it from its cluster manager: wait"}
	case errors.Is(err, kvclient.ErrAuth):
		return finding{Fails, f.errorText(err), "the user has no right to the map: see " + rightsPage}
	default:
		return finding{Fails, "no usable map: " + f.errorText(err), "report it with this text"}
	}
}

// bucketKind judges the type of the bucket.
func bucketKind(f *facts) (finding, bool) {
	if f.err != nil || errors.Is(f.configErr, mcbp.ErrNoVBuckets) || f.stats.generalErr != nil {
		return finding{}, false
	}
	kind, policy := f.stats.general[statBucketType], f.stats.general[statEviction]
	switch {
	case kind == "ephemeral" && f.stats.general[statFullPolicy] == "auto_delete":
		return finding{Warning, "ephemeral, and deletes documents when it is full (auto_delete)",
				"indexes follow such deletions; a node that restarts has lost its documents, and its indexes are rolled back"},
			true
	case kind == "ephemeral":
		return finding{Warning, "ephemeral: nothing is on disk",
			"a node that restarts has lost its documents, and its indexes are rolled back with it"}, true
	case kind == "":
		return finding{result: OK, seen: "its type is not reported"}, true
	}
	return finding{result: OK, seen: strings.TrimSuffix(kind+", eviction "+policy, ", eviction ")}, true
}

// warmup judges whether the node has loaded its documents.
func warmup(f *facts) (finding, bool) {
	switch {
	case f.err != nil || f.stats.generalErr != nil:
		return finding{}, false
	case f.stats.general[statDegraded] == "true" || f.stats.general[statWarmup] == "running":
		return finding{Warning, "it is still reading its documents", "wait: streams start automatically when it is done"},
			true
	}
	return finding{result: OK, seen: "it has its documents"}, true
}

// disk judges the disk of a node of the embedded KV; other engines do not report it here.
func disk(f *facts) (finding, bool) {
	trouble := f.stats.general[mcbp.StatDiskTrouble]
	if f.err != nil || f.stats.generalErr != nil || trouble == "" {
		return finding{}, false
	}
	return finding{Warning, "the bucket " + trouble, "indexes keep up with what it has; see the log of this node"}, true
}

// versionOf judges the version of the engine.
func versionOf(f *facts) (finding, bool) {
	switch {
	case f.err != nil:
		return finding{}, false
	case f.versionErr != nil:
		return finding{result: OK, seen: "not reported: " + f.errorText(f.versionErr)}, true
	}
	major, _, _ := strings.Cut(f.version, ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil:
		return finding{result: OK, seen: fmt.Sprintf("%.40q: unknown version; its features are checked below",
			f.version)}, true
	case n < 5:
		return finding{Fails, f.version, "use 5.0 or later"}, true
	case n > 8:
		return finding{Warning, f.version + ": newer than the versions that this tidemark knows",
			"check the changes of its DCP, and use --feed gocbcore if the native feed fails with it"}, true
	}
	return finding{result: OK, seen: cut(f.version)}, true
}

// features judges the features that HELLO granted.
func features(f *facts) (finding, bool) {
	if f.features == nil {
		return finding{}, false
	}
	var lacks []string
	for _, w := range []mcbp.Feature{mcbp.FeatureXattr, mcbp.FeatureSnappy, mcbp.FeatureMutationToken,
		mcbp.FeatureCollections} {
		if !slices.Contains(f.features, w) {
			lacks = append(lacks, w.String())
		}
	}
	var has []string
	for _, x := range f.features {
		has = append(has, x.String())
	}
	seen := "granted: " + strings.Join(has, ", ")
	switch {
	case slices.Contains(lacks, mcbp.FeatureXattr.String()):
		return finding{Warning, seen + "; not granted: " + strings.Join(lacks, ", "),
			"META().xattrs is missing in indexes; it needs 5.0 or later, with xattrs enabled"}, true
	case len(lacks) > 0:
		return finding{result: OK, seen: seen + "; not granted, but not needed: " + strings.Join(lacks, ", ")}, true
	}
	return finding{result: OK, seen: seen}, true
}

// dcp judges whether documents can be streamed.
func dcp(f *facts) (finding, bool) {
	d := f.dcp
	right := "give the user a role that reads DCP, for the whole bucket (Data DCP Reader; Application Access in the " +
		"Community Edition): " + rightsPage
	for _, step := range []struct {
		err      error
		what, do string
	}{
		{d.openErr, "DCP cannot be opened: ", right},
		{d.logErr, "failover logs cannot be read: ", right},
		{d.streamErr, "streams are refused: ", right},
	} {
		switch err := step.err; {
		case err == nil:
		case errors.Is(err, kvclient.ErrTemporary):
			return finding{Warning, "not now: " + f.errorText(err),
				"the node is warming up or short of memory; the request is repeated until it succeeds"}, true
		case !answered(err):
			return finding{Fails, step.what + f.errorText(err), "check that the node answers"}, true
		case errors.Is(err, kvclient.ErrNotSupported):
			return finding{Fails, step.what + f.errorText(err), "use a bucket of type Couchbase or Ephemeral"}, true
		default:
			return finding{Fails, step.what + f.errorText(err), step.do}, true
		}
	}
	switch {
	case !d.tried || f.err != nil:
		return finding{}, false
	case !d.streamed:
		return finding{result: OK, seen: "opened; the node has no active vbucket to stream"}, true
	}
	return finding{result: OK, seen: "opened, a failover log read, a stream granted"}, true
}

// controls judges keepalive and flow control of DCP connections.
func controls(p *reporter, f *facts) {
	if f.dcp.openErr != nil || len(f.dcp.controls) == 0 || f.err != nil {
		return
	}
	var intervals []string
	fine := true
	add := func(found finding) {
		fine = false
		p.add(checkControls, found, f.addr)
	}
	for _, c := range f.dcp.controls {
		if c.err == nil && c.key == mcbp.ControlNoopInterval {
			intervals = append(intervals, c.value)
		}
		if found, ok := f.lacks(c); ok {
			add(found)
		}
	}
	switch {
	case len(intervals) == 0:
		add(finding{Fails, "all intervals of noops are refused (5, 20 and 120 s)", "report it with the engine's version"})
	case intervals[0] != "5":
		add(finding{Warning, "noops come at most every " + intervals[0] + " s",
			"nothing; a hanging node is detected after twice that time"})
	}
	if fine {
		p.add(checkControls, finding{result: OK, seen: "noops every 5 s, flow control, ends of closed streams"}, f.addr)
	}
}

// lacks returns the consequence of a rejected control. It is false for an accepted one, and for a noop interval, of
// which one accepted value is enough.
func (f *facts) lacks(c control) (finding, bool) {
	switch {
	case c.err == nil || c.key == mcbp.ControlNoopInterval:
	case errors.Is(c.err, kvclient.ErrTemporary):
		return finding{Warning, c.key + " not now: " + f.errorText(c.err),
			"the request is repeated with each connection"}, true
	case c.key == mcbp.ControlEnableNoop:
		return finding{Fails, "noops are refused: " + f.errorText(c.err),
			"use an engine that supports them: without noops a hanging node is not detected"}, true
	case c.key == mcbp.ControlBufferSize:
		return finding{Warning, "no flow control: " + f.errorText(c.err), "use the native feed (--feed native): it ends " +
			"streams and opens them again to bound its memory; gocbcore cannot"}, true
	case c.key == mcbp.ControlEndOnClose:
		return finding{Warning, "it sends no STREAM_END after CLOSE_STREAM", "use the native feed (--feed native), " +
			"which needs none; gocbcore may end the projector's process"}, true
	}
	return finding{}, false
}

// seqnos judges whether a node returns its seqnos.
func seqnos(f *facts) (finding, bool) {
	switch {
	case f.seqnosErr == nil:
		return finding{result: OK, seen: "returned"}, true
	case f.err != nil:
		return finding{}, false
	case errors.Is(f.seqnosErr, kvclient.ErrTemporary):
		return finding{Warning, "not now: " + f.errorText(f.seqnosErr),
				"the node is warming up or short of memory: try again later"},
			true
	}
	return finding{Fails, f.errorText(f.seqnosErr), "give the user a role that reads DCP: " + rightsPage}, true
}

// statistics judges the right to read statistics.
func statistics(f *facts) (finding, bool) {
	if f.err != nil {
		return finding{}, false
	}
	if err := f.stats.err(); err != nil {
		do := "optionally give the user Data Monitor (data_monitoring). Without it, bucket type, warm-up, " +
			"purges and clocks cannot be checked here"
		if errors.Is(err, kvclient.ErrTemporary) {
			do = "the node is busy: try again later"
		}
		return finding{Warning, f.errorText(err), do}, true
	}
	return finding{result: OK, seen: "permitted"}, true
}

// purge judges for how long tombstones are kept.
func purge(f *facts) (finding, bool) {
	if f.err != nil || f.stats.detailsErr != nil || f.stats.generalErr != nil {
		return finding{}, false
	}
	seen := "nothing was purged yet"
	if f.stats.details.purged > 0 {
		seen = "deletions were purged"
	}
	age := f.stats.general[statPurgeAge]
	if f.stats.general[statBucketType] == "ephemeral" {
		age = f.stats.general[statEphemeralPurgeAge]
	}
	seconds, err := strconv.ParseInt(age, 10, 64)
	if err != nil {
		return finding{result: OK, seen: seen +
			"; the interval is not reported here (cluster manager: Metadata Purge Interval, " +
			"3 days unless changed)"}, true
	}
	kept := time.Duration(seconds) * time.Second
	if kept < shortPurge {
		return finding{Warning, fmt.Sprintf("%s; they are kept for %v", seen, kept),
			"set the Metadata Purge Interval to a day or " +
				"more: indexers that are offline longer, and longer builds, stream their vbuckets again from 0"}, true
	}
	return finding{result: OK, seen: fmt.Sprintf("%s; they are kept for %v", seen, kept)}, true
}

// casTime returns the time encoded in a CAS: nanoseconds in its upper 48 bits.
func casTime(cas uint64) time.Time { return time.Unix(0, int64(cas&^0xffff)) }

// clocks compares the node's clock, and the clock in its CAS values, with ours.
func clocks(now time.Time) func(*facts) (finding, bool) {
	return func(f *facts) (finding, bool) {
		s := &f.stats
		if f.err != nil || !s.clocked && s.details.maxCAS == 0 {
			return finding{}, false
		}
		if s.clocked && s.clock.Abs() > clockApart {
			side := "ahead of"
			if s.clock < 0 {
				side = "behind"
			}
			return finding{Warning,
				fmt.Sprintf("its clock is %v %s this machine's", s.clock.Abs().Round(time.Second), side),
				"run a time service (NTP) on all machines: expiry, CAS and logs differ by that much"}, true
		}
		ahead := casTime(s.details.maxCAS).Sub(now)
		if cas := s.details.maxCAS; cas>>63 != 0 || cas > 0 && ahead > clockApart {
			return finding{Warning, fmt.Sprintf("CAS values are of %s, %v ahead of now", casTime(cas&(1<<63-1)).UTC().
				Format(time.DateTime), ahead.Round(time.Second)),
				"documents were written under a clock that was ahead, here or in " +
					"a cluster that replicates to this one: META().cas is no time of day until then"}, true
		}
		if !s.clocked {
			return finding{result: OK, seen: "CAS values are not ahead; its own clock is not reported"}, true
		}
		return finding{result: OK, seen: fmt.Sprintf("within %v of this machine's", clockApart)}, true
	}
}

// collections judges whether a bucket supports collections.
func collections(f *facts) (finding, bool) {
	switch {
	case f.err != nil:
		return finding{}, false
	case f.manifest != nil && f.manifestErr == nil:
		n := 0
		for _, s := range f.manifest.Scopes {
			n += len(s.Collections)
		}
		return finding{result: OK, seen: fmt.Sprintf("%s in %s, manifest %x", many(n, "collection"),
			many(len(f.manifest.Scopes), "scope"), f.manifest.UID)}, true
	case errors.Is(f.manifestErr, kvclient.ErrNotSupported):
		return finding{result: OK, seen: "not in this version: indexes are on the whole bucket"}, true
	}
	return finding{Warning, f.errorText(f.manifestErr),
			"indexes on the bucket work; those on collections wait for its manifest"},
		true
}

// reads judges the right to read documents.
func reads(f *facts) (finding, bool) {
	switch {
	case f.err != nil || errors.Is(f.getErr, kvclient.ErrNotMyVBucket):
		return finding{}, false
	case f.getErr != nil:
		return finding{result: OK, seen: "refused, but not needed: " + f.errorText(f.getErr)}, true
	}
	return finding{result: OK, seen: "permitted"}, true
}

// latencies judges all nodes together: one finding, and one for the slow nodes.
func latencies(p *reporter, all []*facts) {
	var fast []*facts
	for _, f := range all {
		switch {
		case f.latency == 0:
		case f.latency > slowAnswer:
			p.add(checkLatency, finding{Warning, fmt.Sprintf("an answer takes more than %v", slowAnswer),
				"place projectors beside " +
					"their nodes: each session-consistent scan waits for such an answer"}, f.addr)
		default:
			fast = append(fast, f)
		}
	}
	if len(fast) == 0 {
		return
	}
	slices.SortFunc(fast, func(a, b *facts) int { return int(a.latency - b.latency) })
	names := make([]string, len(fast))
	for i, f := range fast {
		names[i] = f.addr
	}
	p.add(checkLatency, finding{result: OK, seen: fmt.Sprintf("%v to %v", fast[0].latency.Round(time.Microsecond),
		fast[len(fast)-1].latency.Round(time.Microsecond))}, names...)
}

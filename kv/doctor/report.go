// Package doctor checks everything that tidemark needs of the nodes of a KV cluster, and reports what works, what
// will not, and why. It changes nothing on the nodes: it reads, opens DCP connections of its own, and requests a
// stream that ends at its start. Every request has a deadline; a hanging node is named in the report, and does not
// delay the others.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemark/kv/kvclient"
)

// Result is the result of a check.
type Result string

// The results, from the best to the worst.
const (
	OK      Result = "ok"
	Warning Result = "warning"       // works, with a caveat
	Fails   Result = "will not work" // indexes of the bucket, or of some vbuckets, cannot be kept
)

// worse reports whether r is worse than other.
func (r Result) worse(other Result) bool { return r.rank() > other.rank() }

func (r Result) rank() int { return slices.Index([]Result{OK, Warning, Fails}, r) }

// Limits of a report, whatever the cluster's size: the nodes that a check names, and the findings of a check.
const (
	maxNamed    = 8
	maxFindings = 6
	maxSeen     = 400 // bytes of a sentence that contains text from a node
)

// ErrFails is wrapped by Report.Err.
var ErrFails = errors.New("some features will not work")

// Report is the result of an examination.
type Report struct {
	Bucket   string  `json:"bucket"`
	UUID     string  `json:"bucket_uuid,omitempty"`
	Network  string  `json:"network,omitempty"` // the network whose addresses were dialled
	Nodes    int     `json:"nodes"`             // number of nodes examined
	VBuckets int     `json:"vbuckets,omitempty"`
	TookMS   int64   `json:"took_ms"`
	Result   Result  `json:"result"` // the worst result of all checks
	Checks   []Check `json:"checks"`

	cause error
}

// Check is one finding, with all nodes that it applies to.
type Check struct {
	Check  string `json:"check"`
	Result Result `json:"result"`
	Seen   string `json:"seen"`
	Why    string `json:"why"` // why the check is made
	Do     string `json:"do,omitempty"`
	// Nodes lists at most maxNamed nodes; NodesCount is the number of all.
	Nodes      []string `json:"nodes,omitempty"`
	NodesCount int      `json:"nodes_count"`
}

// Err returns nil unless a check fails. It wraps ErrFails and, if one cause keeps everything from working, that
// cause.
func (r *Report) Err() error {
	if r.Result != Fails {
		return nil
	}
	if r.cause == nil {
		return ErrFails
	}
	return fmt.Errorf("%w: %w", ErrFails, r.cause)
}

// finding is a check's result for one node, or for the cluster.
type finding struct {
	result   Result
	seen, do string
}

// reporter collects findings.
type reporter struct {
	checks []Check
}

// add adds a finding of some nodes; if the same finding exists, it adds the nodes to it.
func (p *reporter) add(check string, f finding, nodes ...string) {
	f.seen = cut(f.seen)
	at := slices.IndexFunc(p.checks, func(c Check) bool {
		return c.Check == check && c.Result == f.result && c.Seen == f.seen && c.Do == f.do
	})
	if at < 0 {
		at = len(p.checks)
		p.checks = append(p.checks, Check{Check: check, Result: f.result, Seen: f.seen, Do: f.do, Why: why(check)})
	}
	c := &p.checks[at]
	c.NodesCount += len(nodes)
	c.Nodes = append(c.Nodes, nodes[:min(len(nodes), maxNamed-min(maxNamed, len(c.Nodes)))]...)
}

// each adds the findings of judge for all nodes for which it returns true.
func (p *reporter) each(check string, all []*facts, judge func(*facts) (finding, bool)) {
	for _, f := range all {
		if found, ok := judge(f); ok {
			p.add(check, found, f.addr)
		}
	}
}

// bounded returns the checks in their order, the worst findings of each first and at most maxFindings of them; one
// more finding gives the number of those left out.
func (p *reporter) bounded() (out []Check) {
	for _, t := range topics() {
		var mine []Check
		for _, c := range p.checks {
			if c.Check == t.name {
				mine = append(mine, c)
			}
		}
		slices.SortStableFunc(mine, func(a, b Check) int {
			return cmp.Or(b.Result.rank()-a.Result.rank(), b.NodesCount-a.NodesCount)
		})
		if len(mine) > maxFindings {
			rest := mine[maxFindings-1:]
			more := Check{Check: t.name, Result: rest[0].Result, Why: t.why, Do: "check these nodes alone, each with --kv",
				Seen: "other problems at each of more nodes, such as: " + rest[0].Seen}
			for _, c := range rest {
				more.NodesCount += c.NodesCount
				more.Nodes = append(more.Nodes, c.Nodes[:min(len(c.Nodes), maxNamed-len(more.Nodes))]...)
			}
			mine = append(mine[:maxFindings-1:maxFindings-1], more)
		}
		out = append(out, mine...)
	}
	return out
}

// cut shortens a text at a rune boundary.
func cut(text string) string {
	if len(text) > maxSeen {
		text = strings.ToValidUTF8(text[:maxSeen], "") + "…"
	}
	return text
}

// causeOf returns the common reason why no node could be examined, with which the caller should end.
func causeOf(all []*facts) error {
	var last error
	for _, f := range all {
		if f.err == nil {
			return nil // at least one node could be examined
		}
		for _, known := range []error{kvclient.ErrNoBucket, kvclient.ErrAuth, kvclient.ErrNotSupported} {
			if errors.Is(f.err, known) {
				return known
			}
		}
		last = kvclient.ErrNoMap
	}
	return last
}

type topic struct{ name, why string }

// topics returns the checks in their order, with the reason for each.
func topics() []topic {
	return []topic{
		{checkManager, "it was given to find the nodes (http://, https://)"},
		{checkReach,
			"a projector streams from each node; the vbuckets of a node that does not answer are not indexed, and scans " +
				"wait for it"},
		{checkLogin, "projectors log in to each node with this user"},
		{checkTLS,
			"an expired or foreign certificate ends all connections to KV; without TLS documents are sent unencrypted"},
		{checkBucket,
			"indexes follow the vbuckets of a bucket; documents that a bucket loses at a restart of a node are rolled back in " +
				"its indexes"},
		{checkWarmup, "a node that is still reading its documents refuses streams"},
		{checkDisk, "a node that cannot write refuses changes, or lets them wait, and so there is nothing new to index"},
		{checkVersion, "versions of engines behave differently (docs/couchbase.md)"},
		{checkFeatures, "they are negotiated on each connection"},
		{checkMap, "it lists which node has which vbucket, and the node's address"},
		{checkActive, "a vbucket is streamed from the node that has it active"},
		{checkDCP, "all indexed data comes by DCP"},
		{checkControls, "noops show that a silent node is alive, flow control limits memory"},
		{checkSeqnos, "scans with session consistency wait for the seqnos that KV has"},
		{checkStats, "purge seqnos come from statistics: without them copies may be streamed again unnecessarily"},
		{checkPurge, "an indexer that was offline for longer than deletions are kept streams its vbuckets again from 0"},
		{checkClock, "CAS, expiry and logs follow the nodes' clocks"},
		{checkCollections, "CREATE INDEX … ON bucket.scope.collection needs them"},
		{checkReads, "indexes read no documents by key; tidemark kv get does"},
		{checkLatency, "a session-consistent scan waits for one request to each node"},
	}
}

// The checks.
const (
	checkManager     = "manager"
	checkReach       = "reachable"
	checkLogin       = "login"
	checkTLS         = "tls"
	checkBucket      = "bucket"
	checkWarmup      = "warmup"
	checkDisk        = "disk"
	checkVersion     = "version"
	checkFeatures    = "features"
	checkMap         = "map"
	checkActive      = "vbuckets"
	checkDCP         = "dcp"
	checkControls    = "controls"
	checkSeqnos      = "seqnos"
	checkStats       = "statistics"
	checkPurge       = "purge"
	checkClock       = "clock"
	checkCollections = "collections"
	checkReads       = "reads"
	checkLatency     = "latency"
)

// Checks lists the names of all checks, in their order.
func Checks() (names []string) {
	for _, t := range topics() {
		names = append(names, t.name)
	}
	return names
}

func why(check string) string {
	for _, t := range topics() {
		if t.name == check {
			return t.why
		}
	}
	return ""
}

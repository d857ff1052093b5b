package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// Limits of the requests.
const (
	// DefaultTimeout is the default deadline of a request.
	DefaultTimeout = 5 * time.Second
	// maxParallel is the number of nodes that are examined concurrently; a cluster of usual size has fewer.
	maxParallel = 64
	// nodeDeadlines bounds the total time for a node, as a multiple of Timeout: a node may answer every request slowly.
	nodeDeadlines = 4
	// tries bounds the attempts of a request that is refused temporarily.
	tries = 5
	// firstPause is the pause after the first attempt; it doubles with each further one.
	firstPause = 20 * time.Millisecond
	// pings is the number of requests that measure the latency.
	pings = 5
	// keyTries bounds the search for a key in a vbucket that the node has.
	keyTries = 20000
)

// Options select the cluster, and set how to examine it.
type Options struct {
	// Seeds are addresses of some nodes, host:port.
	Seeds []string
	// Managers are addresses of cluster managers, host:port; if given, their map provides the seeds.
	Managers []string
	// KV holds the connection options; Bucket is required.
	KV kvclient.Options
	// Timeout is the deadline of each request; 0: DefaultTimeout.
	Timeout time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// facts are the answers of one node.
type facts struct {
	addr string
	// err is the reason why the examination of the node stopped: an error of the connection, of the login, or of the
	// request named silent, which had no answer.
	err    error
	silent string
	dial   time.Duration

	tls       tlsFacts
	mechanism string
	features  []mcbp.Feature
	latency   time.Duration

	version     string
	versionErr  error
	stats       statFacts
	config      *mcbp.ClusterConfig
	configErr   error
	seqnos      []mcbp.VBucketSeqno
	seqnosErr   error
	manifest    *mcbp.Manifest
	manifestErr error
	getErr      error

	dcp dcpFacts
}

// tlsFacts describe the connection's TLS.
type tlsFacts struct {
	state     *tls.ConnectionState // nil: the connection has no TLS
	certs     []*x509.Certificate  // also those of a rejected certificate
	unchecked bool
}

// names reports whether the certificate is valid for the dialled host, also by its common name alone.
func (t *tlsFacts) names(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && !t.unchecked &&
		(t.certs[0].VerifyHostname(host) == nil || strings.EqualFold(t.certs[0].Subject.CommonName, host))
}

// statFacts hold the statistics.
type statFacts struct {
	general     map[string]string // only the needed ones
	generalErr  error
	clock       time.Duration // the node's clock minus ours; valid if the statistic was there
	clocked     bool
	details     details
	detailsErr  error
	failoverErr error
}

// err returns the first refusal.
func (s *statFacts) err() error {
	for _, err := range []error{s.detailsErr, s.generalErr, s.failoverErr} {
		if err != nil {
			return err
		}
	}
	return nil
}

// details summarize STAT vbucket-details.
type details struct {
	active, other int
	purged        int // vbuckets with a purge seqno
	purge         uint64
	maxCAS        uint64
}

// dcpFacts describe the DCP connection.
type dcpFacts struct {
	tried     bool
	openErr   error
	controls  []control
	logErr    error
	streamed  bool // a stream was requested
	streamErr error
}

// control is a DCP_CONTROL and its result.
type control struct {
	key, value string
	err        error
}

// Examine examines all nodes of the cluster to which the seeds belong.
func Examine(ctx context.Context, o Options) *Report {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.KV.DialTimeout, o.KV.OpTimeout, o.KV.Collection = o.Timeout, o.Timeout, ""
	began := o.Now()
	managers := o.queryManagers(ctx)
	answers := o.examineAll(ctx, append(slices.Clone(o.Seeds), o.seeds(managers)...))
	c := newCluster(answers, managers, o.KV.Network, o.KV.TLS != nil)
	more := slices.DeleteFunc(c.addresses(), func(addr string) bool {
		return slices.ContainsFunc(answers, func(f *facts) bool { return f.addr == addr })
	})
	answers = append(answers, o.examineAll(ctx, more)...)
	c.take(answers)
	r := c.judge(o)
	r.Bucket, r.TookMS = o.KV.Bucket, o.Now().Sub(began).Milliseconds()
	return r
}

// examineAll examines nodes concurrently.
func (o Options) examineAll(ctx context.Context, addrs []string) []*facts {
	out := make([]*facts, len(addrs))
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i, addr := range addrs {
		g.Go(func() error {
			out[i] = &facts{addr: addr}
			o.examine(ctx, out[i])
			return nil
		})
	}
	_ = g.Wait() // none fails
	return out
}

// examine examines one node and fills in f.
func (o Options) examine(ctx context.Context, f *facts) {
	ctx, cancel := context.WithTimeout(ctx, nodeDeadlines*o.Timeout)
	defer cancel()
	opt := o.KV
	opt.Name = "tidemark-doctor"
	opt.Features = []mcbp.Feature{mcbp.FeatureXattr, mcbp.FeatureSnappy, mcbp.FeatureCollections,
		mcbp.FeatureMutationToken}
	began := time.Now()
	var conn *kvclient.Conn
	f.err = again(ctx, func() (err error) {
		conn, err = kvclient.Dial(ctx, f.addr, opt)
		return err
	})
	f.dial = time.Since(began)
	if f.err != nil {
		if bad := (*tls.CertificateVerificationError)(nil); errors.As(f.err, &bad) {
			f.tls.certs = bad.UnverifiedCertificates
		}
		return
	}
	defer conn.Close()
	if state, ok := conn.TLS(); ok {
		f.tls = tlsFacts{state: &state, certs: state.PeerCertificates, unchecked: o.KV.TLS.InsecureSkipVerify}
	}
	f.mechanism = conn.Mechanism()
	for _, known := range mcbp.Features() {
		if conn.Granted(known) {
			f.features = append(f.features, known)
		}
	}
	q := &requests{o: o, f: f, conn: conn}
	q.all(ctx)
	if f.err == nil {
		o.examineDCP(ctx, f, opt)
	}
}

// again retries a request that is refused temporarily, up to tries times.
func again(ctx context.Context, what func() error) error {
	pause := firstPause
	for n := 1; ; n++ {
		err := what()
		if !errors.Is(err, kvclient.ErrTemporary) || n == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// requests sends requests over one connection, one after the other, until one gets no answer.
type requests struct {
	o    Options
	f    *facts
	conn *kvclient.Conn
}

// run sends one request, and records if the node did not answer or closed the connection.
func (q *requests) run(ctx context.Context, name string, what func(ctx context.Context) error) error {
	if q.f.err != nil {
		return q.f.err
	}
	err := again(ctx, func() error {
		one, cancel := context.WithTimeout(ctx, q.o.Timeout)
		defer cancel()
		return what(one)
	})
	if err != nil && !answered(err) {
		q.f.err, q.f.silent = err, name
	}
	return err
}

// answered reports whether err is an answer of the node.
func answered(err error) bool {
	var se *kvclient.StatusError
	return errors.As(err, &se) || errors.Is(err, mcbp.ErrConfig) || errors.Is(err, mcbp.ErrMalformed)
}

func (q *requests) all(ctx context.Context) {
	f := q.f
	var rounds []time.Duration
	for range pings {
		began := time.Now()
		if _, err := q.value(ctx, "NOOP", mcbp.Frame{Header: mcbp.Request(mcbp.OpNoop, 0, 0)}); err != nil {
			break
		}
		rounds = append(rounds, time.Since(began))
	}
	if slices.Sort(rounds); len(rounds) > 0 {
		f.latency = rounds[len(rounds)/2]
	}
	var body []byte
	body, f.versionErr = q.value(ctx, "VERSION", mcbp.Frame{Header: mcbp.Request(mcbp.OpVersion, 0, 0)})
	f.version = string(body)
	f.configErr = q.run(ctx, "GET_CLUSTER_CONFIG", func(ctx context.Context) (err error) {
		if body, err = q.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetClusterConfig, 0, 0)}); err == nil {
			f.config, err = mcbp.ParseClusterConfig(body)
		}
		return err
	})
	f.seqnosErr = q.run(ctx, "GET_ALL_VB_SEQNOS", func(ctx context.Context) (err error) {
		f.seqnos, err = q.conn.VBucketSeqnos(ctx)
		return err
	})
	q.statistics(ctx)
	f.manifestErr = kvclient.ErrNotSupported
	if slices.Contains(f.features, mcbp.FeatureCollections) {
		f.manifestErr = q.run(ctx, "GET_COLLECTIONS_MANIFEST", func(ctx context.Context) (err error) {
			if body, err = q.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetCollectionsManifest, 0, 0)}); err == nil {
				f.manifest = &mcbp.Manifest{}
				err = f.manifest.UnmarshalJSON(body)
			}
			return err
		})
	}
	q.get(ctx)
}

// value sends a request and returns the body of the answer.
func (q *requests) value(ctx context.Context, name string, req mcbp.Frame) (body []byte, err error) {
	err = q.run(ctx, name, func(ctx context.Context) (err error) {
		body, err = q.do(ctx, req)
		return err
	})
	return body, err
}

func (q *requests) do(ctx context.Context, req mcbp.Frame) ([]byte, error) {
	f, err := q.conn.Do(ctx, req)
	if err == nil {
		err = kvclient.NewStatusError(f)
	}
	return f.Value, err
}

// statistics requests the needed groups and keeps the values that are judged.
func (q *requests) statistics(ctx context.Context) {
	f := &q.f.stats
	began := q.o.Now()
	general := map[string]string{}
	f.generalErr = q.stat(ctx, "", func(key []byte) bool {
		switch string(key) {
		case statTime, statBucketType, statEviction, statFullPolicy, statDegraded, statWarmup, statPurgeAge,
			statEphemeralPurgeAge, mcbp.StatDiskTrouble:
			return true
		}
		return false
	}, func(key, value string) { general[key] = cut(value) })
	f.general = general
	if at, err := strconv.ParseInt(general[statTime], 10, 64); err == nil {
		took := q.o.Now().Sub(began)
		f.clock, f.clocked = time.Unix(at, 0).Sub(began.Add(took/2).Truncate(time.Second)), true
	}
	var d details
	f.detailsErr = q.stat(ctx, "vbucket-details", func(key []byte) bool {
		return !bytes.ContainsRune(key, ':') || bytes.HasSuffix(key, []byte(":"+statPurge)) ||
			bytes.HasSuffix(key, []byte(":"+statMaxCAS))
	}, d.take)
	f.details = d
	f.failoverErr = q.stat(ctx, "failovers", func([]byte) bool { return false }, nil)
}

// stat reads a group and calls each for the kept entries only after the whole group has arrived: after an error, the
// node may still send entries.
func (q *requests) stat(ctx context.Context, group string, keep func(key []byte) bool,
	each func(key, value string)) error {
	type entry struct{ key, value string }
	var all []entry
	err := q.run(ctx, strings.TrimSpace("STAT "+group), func(ctx context.Context) error {
		var got []entry
		left := 0
		err := q.conn.Stat(ctx, group, func(key, value []byte) {
			switch {
			case !keep(key):
			case len(got) == maxStats:
				left++
			default:
				got = append(got, entry{string(key), string(value)})
			}
		})
		if err == nil && left > 0 {
			err = fmt.Errorf("%w: STAT %s has %d entries more than a bucket of %d vbuckets can have", mcbp.ErrMalformed, group,
				left, mcbp.MaxVBuckets)
		}
		if err == nil {
			all = got
		}
		return err
	})
	for _, e := range all {
		each(e.key, e.value)
	}
	return err
}

// maxStats bounds the entries of a group that are kept: three for each vbucket of the largest map.
const maxStats = 3 * mcbp.MaxVBuckets

// The statistics.
const (
	statTime              = "time"
	statBucketType        = "ep_bucket_type"
	statEviction          = "ep_item_eviction_policy"
	statFullPolicy        = "ep_ephemeral_full_policy"
	statDegraded          = "ep_degraded_mode"
	statWarmup            = "ep_warmup_thread"
	statPurgeAge          = "ep_persistent_metadata_purge_age"
	statEphemeralPurgeAge = "ep_ephemeral_metadata_purge_age"
	// of each vbucket
	statPurge  = "purge_seqno"
	statMaxCAS = "max_cas"
)

// take records an entry of vbucket-details.
func (d *details) take(key, value string) {
	name, field, ok := strings.Cut(key, ":")
	if !strings.HasPrefix(name, "vb_") {
		return
	}
	if !ok {
		if value == "active" {
			d.active++
		} else {
			d.other++
		}
		return
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return
	}
	switch field {
	case statPurge:
		if n > 0 {
			d.purged++
		}
		d.purge = max(d.purge, n)
	case statMaxCAS:
		d.maxCAS = max(d.maxCAS, n)
	}
}

// get requests a document that does not exist, in a vbucket that the node has.
func (q *requests) get(ctx context.Context) {
	f := q.f
	if len(f.seqnos) == 0 || f.config == nil {
		f.getErr = kvclient.ErrNotMyVBucket // the node has no vbucket to request from
		return
	}
	key := keyOf(f.seqnos[0].VBucket, f.config.NumVBuckets())
	req := mcbp.Frame{Header: mcbp.Request(mcbp.OpGet, f.seqnos[0].VBucket, 0), Key: []byte(key)}
	if slices.Contains(f.features, mcbp.FeatureCollections) {
		req.Key = mcbp.AppendCollectionKey(nil, mcbp.DefaultCollection, req.Key)
	}
	if _, f.getErr = q.value(ctx, "GET", req); errors.Is(f.getErr, kvclient.ErrKeyNotFound) {
		f.getErr = nil
	}
}

// keyOf returns an unused key of a vbucket.
func keyOf(vb uint16, vbuckets int) string {
	prefix := "tidemark-doctor::" + rand.Text()
	for n := range keyTries {
		if key := prefix + strconv.Itoa(n); mcbp.VBucket([]byte(key), vbuckets) == vb {
			return key
		}
	}
	return prefix // no key found: the node will answer that the vbucket is not its own
}

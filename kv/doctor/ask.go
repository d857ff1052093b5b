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

// Bounds of the questions.
const (
	// DefaultTimeout is the deadline of a question.
	DefaultTimeout = 5 * time.Second
	// atOnce nodes are asked side by side: all of a usual cluster.
	atOnce = 64
	// nodeQuestions bounds what a node that is slow with each of them takes, in deadlines.
	nodeQuestions = 4
	// tries are made of what is refused for the moment.
	tries = 5
	// firstPause is between the first two of them, and doubles.
	firstPause = 20 * time.Millisecond
	// pings measure the latency.
	pings = 5
	// keyDraws bounds the search for a key of a vbucket that the node has.
	keyDraws = 20000
)

// Options say whom to ask, and how.
type Options struct {
	// Seeds are addresses of some nodes, host:port.
	Seeds []string
	// Managers are addresses of cluster managers, host:port, that name the nodes instead.
	Managers []string
	// KV says how to connect; Bucket is needed.
	KV kvclient.Options
	// Timeout is the deadline of each question; 0: DefaultTimeout.
	Timeout time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// facts are what one node has answered.
type facts struct {
	addr string
	// err is why nothing more could be asked: of the connection, of the login, or of the question named silent.
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

// tlsFacts are of the connection's TLS.
type tlsFacts struct {
	state     *tls.ConnectionState // nil: there is none
	certs     []*x509.Certificate  // also of one that was refused
	unchecked bool
}

// names reports whether the certificate names the host that was dialled, also by its common name alone.
func (t *tlsFacts) names(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && !t.unchecked &&
		(t.certs[0].VerifyHostname(host) == nil || strings.EqualFold(t.certs[0].Subject.CommonName, host))
}

// statFacts are of the statistics.
type statFacts struct {
	general     map[string]string // some of them
	generalErr  error
	clock       time.Duration // by how much the node's is ahead; counts if the statistic was there
	clocked     bool
	details     details
	detailsErr  error
	failoverErr error
}

// err is the first refusal.
func (s *statFacts) err() error {
	for _, err := range []error{s.detailsErr, s.generalErr, s.failoverErr} {
		if err != nil {
			return err
		}
	}
	return nil
}

// details are a summary of STAT vbucket-details.
type details struct {
	active, other int
	purged        int // vbuckets with a purge seqno
	purge         uint64
	maxCAS        uint64
}

// dcpFacts are of the DCP connection.
type dcpFacts struct {
	asked     bool
	openErr   error
	controls  []control
	logErr    error
	streamed  bool // a stream was asked for
	streamErr error
}

// control is what became of a DCP_CONTROL.
type control struct {
	key, value string
	err        error
}

// Examine asks all nodes of the cluster that the seeds lead to.
func Examine(ctx context.Context, o Options) *Report {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.KV.DialTimeout, o.KV.OpTimeout, o.KV.Collection = o.Timeout, o.Timeout, ""
	began := o.Now()
	managers := o.askManagers(ctx)
	asked := o.askAll(ctx, append(slices.Clone(o.Seeds), o.seeds(managers)...))
	c := newCluster(asked, managers, o.KV.Network, o.KV.TLS != nil)
	more := slices.DeleteFunc(c.addresses(), func(addr string) bool {
		return slices.ContainsFunc(asked, func(f *facts) bool { return f.addr == addr })
	})
	asked = append(asked, o.askAll(ctx, more)...)
	c.take(asked)
	r := c.judge(o)
	r.Bucket, r.TookMS = o.KV.Bucket, o.Now().Sub(began).Milliseconds()
	return r
}

// askAll asks nodes side by side.
func (o Options) askAll(ctx context.Context, addrs []string) []*facts {
	out := make([]*facts, len(addrs))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, addr := range addrs {
		g.Go(func() error {
			out[i] = &facts{addr: addr}
			o.ask(ctx, out[i])
			return nil
		})
	}
	_ = g.Wait() // none fails
	return out
}

// ask fills in what one node says.
func (o Options) ask(ctx context.Context, f *facts) {
	ctx, cancel := context.WithTimeout(ctx, nodeQuestions*o.Timeout)
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
	q := &questions{o: o, f: f, conn: conn}
	q.all(ctx)
	if f.err == nil {
		o.askDCP(ctx, f, opt)
	}
}

// again repeats what is refused for the moment, a few times.
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

// questions are asked one after the other over one connection; none is after one that had no answer.
type questions struct {
	o    Options
	f    *facts
	conn *kvclient.Conn
}

// question asks one, and notes when the node has fallen silent or hung up.
func (q *questions) question(ctx context.Context, name string, what func(ctx context.Context) error) error {
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

// answered reports whether an error is a node's answer.
func answered(err error) bool {
	var se *kvclient.StatusError
	return errors.As(err, &se) || errors.Is(err, mcbp.ErrConfig) || errors.Is(err, mcbp.ErrMalformed)
}

func (q *questions) all(ctx context.Context) {
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
	f.configErr = q.question(ctx, "GET_CLUSTER_CONFIG", func(ctx context.Context) (err error) {
		if body, err = q.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetClusterConfig, 0, 0)}); err == nil {
			f.config, err = mcbp.ParseClusterConfig(body)
		}
		return err
	})
	f.seqnosErr = q.question(ctx, "GET_ALL_VB_SEQNOS", func(ctx context.Context) (err error) {
		f.seqnos, err = q.conn.VBucketSeqnos(ctx)
		return err
	})
	q.statistics(ctx)
	f.manifestErr = kvclient.ErrNotSupported
	if slices.Contains(f.features, mcbp.FeatureCollections) {
		f.manifestErr = q.question(ctx, "GET_COLLECTIONS_MANIFEST", func(ctx context.Context) (err error) {
			if body, err = q.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetCollectionsManifest, 0, 0)}); err == nil {
				f.manifest = &mcbp.Manifest{}
				err = f.manifest.UnmarshalJSON(body)
			}
			return err
		})
	}
	q.get(ctx)
}

// value asks for one and returns the body of the answer.
func (q *questions) value(ctx context.Context, name string, req mcbp.Frame) (body []byte, err error) {
	err = q.question(ctx, name, func(ctx context.Context) (err error) {
		body, err = q.do(ctx, req)
		return err
	})
	return body, err
}

func (q *questions) do(ctx context.Context, req mcbp.Frame) ([]byte, error) {
	f, err := q.conn.Do(ctx, req)
	if err == nil {
		err = kvclient.NewStatusError(f)
	}
	return f.Value, err
}

// statistics asks for the groups that matter and keeps of them what is judged.
func (q *questions) statistics(ctx context.Context) {
	f := &q.f.stats
	began := q.o.Now()
	general := map[string]string{}
	f.generalErr = q.stat(ctx, "", func(key []byte) bool {
		switch string(key) {
		case statTime, statBucketType, statEviction, statFullPolicy, statDegraded, statWarmup, statPurgeAge,
			statEphemeralPurgeAge:
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

// stat reads a group, and hands on what is kept of it when all of it has come: who is told of an error may still be
// sent entries.
func (q *questions) stat(ctx context.Context, group string, keep func(key []byte) bool,
	each func(key, value string)) error {
	type entry struct{ key, value string }
	var all []entry
	err := q.question(ctx, strings.TrimSpace("STAT "+group), func(ctx context.Context) error {
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

// maxStats bounds the entries of a group that are kept: three of each vbucket, where a map may have most of them.
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
	// of a vbucket
	statPurge  = "purge_seqno"
	statMaxCAS = "max_cas"
)

// take reads an entry of vbucket-details.
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

// get asks for a document that there is not, of a vbucket that the node has.
func (q *questions) get(ctx context.Context) {
	f := q.f
	if len(f.seqnos) == 0 || f.config == nil {
		f.getErr = kvclient.ErrNotMyVBucket // there is none to ask for
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

// keyOf makes a key of a vbucket that nobody uses.
func keyOf(vb uint16, vbuckets int) string {
	prefix := "tidemark-doctor::" + rand.Text()
	for n := range keyDraws {
		if key := prefix + strconv.Itoa(n); mcbp.VBucket([]byte(key), vbuckets) == vb {
			return key
		}
	}
	return prefix // the node will say that it is not its own
}

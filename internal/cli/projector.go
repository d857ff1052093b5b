package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/projector/core"
	"tidemark/wire"
)

// stateTimeout limits one projector's answer: it returns its state at once, whatever the state of its streams.
const stateTimeout = 5 * time.Second

// errNoProjector means that no projector has answered its request.
var errNoProjector = errors.New("no projector answered")

// projectorView is the state of one projector, or the reason why there is none.
type projectorView struct {
	ID    string `json:"id,omitempty"` // "" if it was given by its address and does not answer
	Admin string `json:"admin"`
	Error string `json:"error,omitempty"`
	// State is the answer of its GET /v1/state.
	State *wire.ProjectorState `json:"state,omitempty"`
}

func projectorState(s Streams) *cobra.Command {
	f := &serverFlags{}
	var admin []string
	var vbuckets bool
	cmd := &cobra.Command{Use: "state [ID ...]", Short: "Show what projectors stream: buckets and vbuckets, topics and " +
		"their queues, faults",
		Long: `Gets the addresses of the projectors from a manager, and requests the state of all of them, or of those with
the given IDs. With --admin, projectors are queried directly, without a manager. STREAMS is the number of vbuckets that
are streamed, and of those that the projector has; BEHIND the number of seqnos received since the last complete
snapshot; HELD the bytes that KV has sent and that are not processed yet, and how many KV may send; QUEUE how full the
fullest queue is. --output json prints everything, with the field names of GET /v1/state. A projector that does not
answer is listed with the reason; if none answers, the command fails. With TLS, use a certificate of a node or of an
administrator.`,
		Example: "  tidemark projector state --data ./cluster\n  tidemark projector state p1 --vbuckets\n  tidemark " +
			"projector state --admin 10.0.0.4:9530 --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(admin) > 0 && len(args) > 0 {
				return usage("--admin has the addresses of projectors: omit the IDs, or --admin")
			}
			conf, err := f.projectorTLS()
			if err = cmp.Or(err, f.checkTimeout()); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			var views []projectorView
			for _, a := range admin {
				url, err := adminURL(a, conf)
				if err != nil {
					return err
				}
				views = append(views, projectorView{Admin: url})
			}
			if views = insideProcesses(ctx, views, conf); len(views) == 0 {
				if err := f.do(ctx, func(ctx context.Context, c *client.Client) (err error) {
					views, err = registeredProjectors(ctx, c, args)
					return err
				}); err != nil {
					return err
				}
			}
			askProjectors(ctx, views, conf)
			if err := show(s.Out, f.output, map[string]any{"projectors": views}, views,
				func(t *tabwriter.Writer) { tableProjectors(t, views, vbuckets) }); err != nil {
				return err
			}
			return noneAnswers(views)
		}}
	f.add(cmd, s)
	cmd.Flags().StringSliceVar(&admin, "admin", nil, "admin addresses of projectors, host:port or URL, to query them "+
		"without a manager")
	cmd.Flags().BoolVar(&vbuckets, "vbuckets", false, "also show every vbucket's stream")
	return cmd
}

// projectorTLS returns the TLS configuration for projectors, which are identified by CA and role, as among
// components; nil without TLS.
func (f *serverFlags) projectorTLS() (*tls.Config, error) {
	if err := f.credentials.folder(); err != nil {
		return nil, err
	}
	files := f.credentials.files
	if files.Empty() && f.data != "" {
		m, err := localManifest(f.data)
		if err != nil {
			return nil, err
		}
		if m.TLS != nil {
			files = tlsconf.Files(*m.TLS)
		}
	}
	source, err := tlsconf.Open(files, nil)
	if err != nil {
		return nil, usageError{err}
	}
	return source.Client(tlsconf.HTTP, tlsconf.Projector), nil
}

// adminURL returns the base URL for host:port, or a base URL unchanged.
func adminURL(address string, conf *tls.Config) (string, error) {
	address = strings.TrimRight(strings.TrimSpace(address), "/")
	switch scheme, rest, found := strings.Cut(address, "://"); {
	case !found && conf != nil:
		return tlsconf.BaseURL("https", address), nil
	case !found:
		return tlsconf.BaseURL("http", address), nil
	case rest == "" || scheme != "http" && scheme != "https":
		return "", usage("--admin %s: want host:port, or a URL that begins with http:// or https://", address)
	case scheme == "http" && conf != nil:
		return "", usage("%s is without TLS, but --tls-ca is given: write https://, or only the address", address)
	}
	return address, nil
}

// registeredProjectors returns the projectors registered at the managers, or the wanted ones of them.
func registeredProjectors(ctx context.Context, c *client.Client, wanted []string) (views []projectorView, err error) {
	status, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	missing := slices.Clone(wanted)
	var known []string
	for _, p := range status.Projectors {
		id := string(p.ID)
		known = append(known, id)
		missing = slices.DeleteFunc(missing, func(w string) bool { return w == id })
		if len(wanted) == 0 || slices.Contains(wanted, id) {
			views = append(views, projectorView{ID: id, Admin: strings.TrimRight(p.Admin, "/")})
		}
	}
	switch {
	case len(missing) > 0:
		return nil, usage("there is no projector %s; the projectors are: %s", strings.Join(missing, ", "),
			cmp.Or(strings.Join(known, ", "), "none"))
	case len(views) == 0:
		return nil, errors.New("no projector has registered with the managers yet")
	}
	return views, nil
}

// insideProcesses replaces the address of a process with several projectors by those projectors.
func insideProcesses(ctx context.Context, views []projectorView, conf *tls.Config) (all []projectorView) {
	c := rpc.NewClient(core.MaxKVNodes, conf) // a projector that hangs does not delay the others
	defer c.Close()
	inside := make([][]projectorView, len(views))
	var calls sync.WaitGroup
	for i, v := range views {
		calls.Go(func() {
			inside[i] = []projectorView{v}
			process, err := rpc.Call[wire.ProjectorProcess](ctx, c, stateTimeout, http.MethodGet, v.Admin+"/v1/projectors", nil)
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				inside[i][0].Error = err.Error()
				return
			case err != nil:
				return // a process with a single projector, or an error that the request of its state will return
			}
			inside[i] = nil
			for _, p := range process.Projectors {
				inside[i] = append(inside[i], projectorView{ID: string(p.ID), Admin: p.Admin})
			}
			for _, n := range process.Unserved {
				inside[i] = append(inside[i], projectorView{Admin: v.Admin,
					Error: "KV node " + n.Node + " is not served: " + n.Error})
			}
		})
	}
	calls.Wait()
	return slices.Concat(inside...)
}

// askProjectors fills in the state of each projector, in parallel.
func askProjectors(ctx context.Context, views []projectorView, conf *tls.Config) {
	c := rpc.NewClient(core.MaxKVNodes, conf) // a projector that hangs does not delay the others
	defer c.Close()
	var all sync.WaitGroup
	for i := range views {
		v := &views[i]
		if v.Error != "" {
			continue // known already
		}
		all.Go(func() {
			state, err := rpc.Call[wire.ProjectorState](ctx, c, stateTimeout, http.MethodGet, v.Admin+"/v1/state", nil)
			for i := 0; err == nil && i < len(state.Buckets); i++ {
				err = state.Buckets[i].Columns()
			}
			switch {
			case errors.Is(err, http.ErrSchemeMismatch):
				v.Error = "it does not use TLS, but the request did: put http:// before its address and omit --tls-ca"
			case err != nil:
				v.Error = err.Error()
			default:
				v.ID, v.State = cmp.Or(v.ID, string(state.ID)), state
			}
		})
	}
	all.Wait()
}

func noneAnswers(views []projectorView) error {
	if slices.ContainsFunc(views, func(v projectorView) bool { return v.State != nil }) {
		return nil
	}
	return fmt.Errorf("%w; %s: %s", errNoProjector, views[0].Admin, views[0].Error)
}

func tableProjectors(t io.Writer, views []projectorView, vbuckets bool) {
	fmt.Fprintln(t, "PROJECTOR\tADMIN\tKV\tBUCKET\tKV "+
		"CONNECTION\tSTREAMS\tBEHIND\tHELD\tQUEUE\tDEFINITIONS\tDOCUMENTS\tERRORS")
	for _, v := range views {
		st := v.State
		if st == nil {
			fmt.Fprintf(t, "%s\t%s\tdoes not answer\t\t\t\t\t\t\t\t\t\n", cmp.Or(v.ID, "-"), v.Admin)
			continue
		}
		head := fmt.Sprintf("%s\t%s\t%s", st.ID, v.Admin, strings.Join(st.KV, ","))
		tail := fmt.Sprintf("%d\t%d", st.Counters.Mutations+st.Counters.Deletions, st.Counters.Errors)
		if len(st.Buckets) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\t0\t0\t0\t-\t%d\t%s\n", head, len(st.Definitions), tail)
		}
		for i := range st.Buckets {
			b := &st.Buckets[i]
			connection := "lost"
			if b.Connected {
				connection = "up"
			}
			running, behind := bucketStreams(b)
			fmt.Fprintf(t, "%s\t%s\t%s\t%d of %d\t%d\t%d/%d\t%s\t%d\t%s\n", head, b.Bucket, connection, running, len(b.VBuckets),
				behind, b.HeldBytes, b.BufferBytes,
				fullest(b.Workers), definitionsOf(st, b.Bucket), tail)
			head, tail = "\t\t", "\t"
		}
	}
	tableTopics(t, views)
	if vbuckets {
		tableVBuckets(t, views)
	}
	for i := range views {
		tableProblems(t, &views[i])
	}
}

// tableProblems prints a paragraph for each problem of a projector.
func tableProblems(t io.Writer, v *projectorView) {
	st := v.State
	if st == nil {
		fmt.Fprintf(t, "\n%s: %s\n", cmp.Or(v.ID, v.Admin), v.Error)
		return
	}
	for _, k := range st.KVTroubles {
		fmt.Fprintf(t, "\n%s: KV node %s has not answered about bucket %s since %s: %s\n", st.ID, k.Node, k.Bucket,
			clockOf(k.SinceMS), k.Error)
	}
	for i := range st.Buckets {
		b := &st.Buckets[i]
		remark(t, b.PurgesUnknown, "%s: KV does not report its purge seqnos of bucket %s, so copies may stream vbuckets "+
			"again unnecessarily", st.ID, b.Bucket)
	}
	for _, f := range st.Faults {
		fmt.Fprintf(t, "\n%s: index %d: %d documents have no entry: an expression failed (%d), a key was too long (%d); "+
			"one is %s (vbucket %d, seqno %d): %s\n", st.ID, f.Index, f.Expression+f.TooLong, f.Expression, f.TooLong,
			f.Sample.DocID, f.Sample.VBucket, f.Sample.Seqno, f.Sample.Error)
	}
	if n := st.FaultsOmitted; n > 0 {
		fmt.Fprintf(t, "\n%s: %d more indexes lack entries\n", st.ID, n)
	}
}

func tableTopics(t io.Writer, views []projectorView) {
	fmt.Fprintln(t, "\nPROJECTOR\tTOPIC\tBUCKET\tINDEXES\tVBUCKETS\tSUBSCRIBER\tADDRESS\tCONNECTION\tQUEUE")
	for _, v := range views {
		if v.State == nil {
			continue
		}
		for i := range v.State.Topics {
			topic := &v.State.Topics[i]
			head := fmt.Sprintf("%s\t%s\t%s\t%s\t%d", v.State.ID, topic.Topic, topic.Bucket, joinIDs(topic.Indexes),
				topic.VBuckets)
			if len(topic.Endpoints) == 0 {
				fmt.Fprintf(t, "%s\t-\t\t\t\n", head)
			}
			for _, e := range topic.Endpoints {
				state := e.State
				if e.Slow {
					state += " (slow)"
				}
				if e.Error != "" {
					state += " (" + e.Error + ")"
				}
				if e.Dropping > 0 {
					state += fmt.Sprintf(" (%d vbuckets dropped)", e.Dropping)
				}
				fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d/%d\n", head, e.Node, e.Address, state, e.Queue.Filled, e.Queue.Limit)
				head = "\t\t\t\t"
			}
		}
	}
}

func tableVBuckets(t io.Writer, views []projectorView) {
	fmt.Fprintln(t, "\nPROJECTOR\tBUCKET\tVBUCKET\tVBUUID\tSEQNO\tCOMPLETE\tINCARNATION\tSTREAM")
	for _, v := range views {
		if v.State == nil {
			continue
		}
		for i := range v.State.Buckets {
			b := &v.State.Buckets[i]
			for j, vb := range b.VBuckets {
				state := "runs"
				if b.Ended[j] {
					state = "ended"
				}
				fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%v\t%s\n", v.State.ID, b.Bucket, vb, b.VBUUIDs[j], b.Seqnos[j],
					b.Complete[j], b.Incarnations[j], state)
			}
		}
	}
}

// bucketStreams returns the number of a bucket's running streams, and of the seqnos received since their last
// complete snapshots.
func bucketStreams(b *wire.BucketState) (running int, behind uint64) {
	for i := range b.VBuckets {
		if !b.Ended[i] {
			running++
		}
		if b.Seqnos[i] > b.Complete[i] {
			behind += b.Seqnos[i] - b.Complete[i]
		}
	}
	return running, behind
}

// fullest returns the queue that is closest to its limit.
func fullest(queues []wire.QueueFill) string {
	if len(queues) == 0 {
		return "-"
	}
	q := slices.MaxFunc(queues, func(a, b wire.QueueFill) int { return cmp.Compare(a.Filled*b.Limit, b.Filled*a.Limit) })
	return fmt.Sprintf("%d/%d", q.Filled, q.Limit)
}

func definitionsOf(st *wire.ProjectorState, bucket string) (n int) {
	for _, d := range st.Definitions {
		if d.Bucket == bucket {
			n++
		}
	}
	return n
}

func joinIDs(ids []index.ID) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = fmt.Sprint(id)
	}
	return cmp.Or(strings.Join(words, ","), "-")
}

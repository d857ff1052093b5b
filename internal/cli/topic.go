package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/client/topic"
	"tidemark/collate"
	"tidemark/index"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
)

func newTopic(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{Use: "topic", Short: "Subscribe to KeyVersions: what indexers receive for each document",
		Args: noArgs}
	f.add(cmd, s)
	if t := cmd.PersistentFlags().Lookup("timeout"); t != nil {
		f.timeout, t.DefValue, t.Usage = 0, "0s", "how long to show; 0: no limit"
	}
	cmd.AddCommand(topicTail(s, f))
	return cmd
}

func topicTail(s Streams, f *serverFlags) *cobra.Command {
	var count uint64
	var listen, advertise string
	var subscriber tlsconf.Files
	var syncs, insecure bool
	cmd := &cobra.Command{Use: "tail BUCKET [INDEX...]", Short: "Print the KeyVersions of indexes, from the first " +
		"document on",
		Long: `Subscribes to the KeyVersions of the given indexes (ids or names; without any, of all indexes) at every
projector, and prints a JSON line for each KeyVersion: first those of all existing documents, then every change, in
order within each vbucket, until Ctrl-C, --timeout or --count. If KV rolls back, for example in a failover, a line of
kind Rollback invalidates what was printed of that vbucket above its seqno; --count does not count such lines.

Projectors connect to --listen: give an address that they can reach, unless they belong to tidemark up. With TLS,
managers authenticate the user of --user, --token-file or --tls-cert, and projectors require a certificate of role
indexer (--subscriber-cert; tidemark cert node); with --data of a tidemark up --tls both are found. Programs subscribe
with the Go package client/topic, or as docs/protocol.md describes.`,
		Example: "  tidemark topic tail world --data ./cluster\n  tidemark topic tail world airports_by_country " +
			"--count 10\n  tidemark topic tail world --server m1:9520 --tls-ca ca.pem --token-file token " +
			"--subscriber-cert audit.pem --subscriber-key audit-key.pem",
		Args: atLeast("BUCKET [INDEX...]: a bucket, and ids or names of its indexes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.output == formatCSV || f.output == formatYAML {
				return usage("--output %s: want json or jsonl, a line for each KeyVersion", f.output)
			}
			if f.timeout == 0 {
				f.timeout = watchForever
			}
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			p, err := newTopicPrinter(ctx, s, c, args[0])
			if err != nil {
				return err
			}
			p.left, p.syncs = count, syncs
			log := hclog.New(&hclog.LoggerOptions{Name: "tidemark", Output: s.Err, Level: hclog.Info, DisableTime: true})
			cfg := topic.Config{ID: "tail-" + rand.Text(), Bucket: args[0], Indexes: args[1:], Listen: listen,
				Advertise: advertise, Logger: log,
				Projectors: func(ctx context.Context) ([]string, error) { return projectorURLs(ctx, c) },
				Handle: func(ctx context.Context, ev *keyversion.Event) error {
					err := p.handle(ctx, ev)
					if errors.Is(err, errEnough) { // events after the last line are rejected on purpose
						log.SetLevel(hclog.Error)
					}
					return err
				},
				Rollback: p.rollback}
			if cfg.TLS, err = f.subscriberTLS(subscriber, cfg.Logger); err != nil {
				return err
			}
			if err := cfg.TLS.MayListen(insecure, tlsconf.Address{Flag: "listen", HostPort: listen}); err != nil {
				return err
			}
			sub, err := topic.Open(cfg)
			if err != nil {
				return err
			}
			conf := cfg.TLS.Client(tlsconf.HTTP, tlsconf.Projector)
			reporting, stopReporting := context.WithCancel(ctx)
			var reporter sync.WaitGroup
			reporter.Go(func() { reportUnreached(reporting, s.Err, sub.Endpoint(), cfg.Projectors, conf) })
			err = sub.Run(ctx)
			stopReporting()
			reporter.Wait()
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}}
	cmd.Flags().Uint64Var(&count, "count", 0, "end after this many lines")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "listen here for the data streams")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "listen beyond loopback without TLS")
	cmd.Flags().StringVar(&subscriber.Cert, "subscriber-cert", "", "PEM `FILE` with a certificate of role indexer, for "+
		"projectors (default --tls-cert)")
	cmd.Flags().StringVar(&subscriber.Key, "subscriber-key", "", "PEM `FILE` with its key")
	hostVar(cmd.Flags(), &advertise, "advertise", "`HOST` at which projectors reach --listen, if it differs; the "+
		"port is the same")
	cmd.Flags().BoolVar(&syncs, "sync", false, "also print SYNC: everything of the vbucket up to its seqno has been "+
		"printed")
	return cmd
}

// subscriberTLS returns the TLS configuration for both directions of a subscription: with the certificate of these
// files, or that of the user, or of a running up; nil without TLS.
func (f *serverFlags) subscriberTLS(own tlsconf.Files, log hclog.Logger) (*tlsconf.Source, error) {
	files, err := f.subscriberFiles()
	if err != nil {
		return nil, err
	}
	if own.Cert != "" || own.Key != "" {
		files.Cert, files.Key = own.Cert, own.Key
	}
	source, err := tlsconf.Open(files, log)
	if err != nil {
		return nil, usageError{err}
	}
	if err := source.Has(tlsconf.Indexer); err != nil {
		return nil, usage("--subscriber-cert, --subscriber-key: %v; make them with: tidemark cert node --role indexer --id "+
			"NAME", err)
	}
	return source, nil
}

// atLeast requires one argument or more.
func atLeast(words string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("%s needs %s", cmd.CommandPath(), words)
		}
		return nil
	}
}

// subscriberFiles returns the user's certificate files; by default, those of a subscriber of the local cluster.
func (f *serverFlags) subscriberFiles() (tlsconf.Files, error) {
	if err := f.credentials.folder(); err != nil {
		return tlsconf.Files{}, err
	}
	if !f.credentials.files.Empty() || len(f.server) > 0 || f.data == "" {
		return f.credentials.files, nil
	}
	m, err := localManifest(f.data)
	if err != nil || m.Subscriber == nil {
		return f.credentials.files, err
	}
	return tlsconf.Files(*m.Subscriber), nil
}

// projectorURLs requests the addresses of the projectors that are not offline from a manager.
func projectorURLs(ctx context.Context, c *client.Client) (urls []string, err error) {
	status, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range status.Projectors {
		if p.State != "offline" {
			urls = append(urls, strings.TrimRight(p.Admin, "/"))
		}
	}
	return urls, nil
}

// reportUnreached reports, once each, the projectors that cannot reach a subscriber at its address, and why. It polls
// with growing intervals, because the projectors' state may be large.
func reportUnreached(ctx context.Context, w io.Writer, address string,
	projectors func(context.Context) ([]string, error), conf *tls.Config) {
	reported := map[string]bool{}
	for wait := reportAfter; pause(ctx, wait); wait = min(2*wait, time.Minute) {
		urls, err := projectors(ctx)
		if err != nil {
			continue // the subscription reports it
		}
		var views []projectorView
		for _, url := range urls {
			views = append(views, projectorView{Admin: url})
		}
		askProjectors(ctx, views, conf)
		for i := range views {
			if why := unreached(&views[i], address); why != "" && !reported[views[i].ID] {
				reported[views[i].ID] = true
				fmt.Fprintf(w, "tidemark: projector %s cannot reach %s: %s; see --listen and --advertise\n", views[i].ID,
					address, why)
			}
		}
	}
}

// unreached returns why a projector cannot reach an address; "" if it can, or has no stream to it.
func unreached(v *projectorView, address string) string {
	if v.State == nil {
		return ""
	}
	for i := range v.State.Topics {
		for _, e := range v.State.Topics[i].Endpoints {
			if e.Address == address && e.Error != "" {
				return e.Error
			}
		}
	}
	return ""
}

// errEnough ends a tail that has printed --count lines.
var errEnough = errors.New("enough")

// topicPrinter prints KeyVersions. Calls must not be concurrent.
type topicPrinter struct {
	out   Streams
	names map[index.ID]string
	desc  map[index.ID][]bool
	left  uint64 // 0: no limit
	syncs bool
	ended bool // nothing more is printed, whatever arrives before the connections are closed
}

func newTopicPrinter(ctx context.Context, s Streams, c *client.Client, bucket string) (*topicPrinter, error) {
	p := &topicPrinter{out: s, names: map[index.ID]string{}, desc: map[index.ID][]bool{}}
	list, err := c.Indexes(ctx, bucket)
	if err != nil {
		return nil, err
	}
	for _, i := range list.Indexes {
		d := index.Definition{IsPrimary: i.IsPrimary, Keys: i.Keys}
		id := cmp.Or(i.Origin, i.ID)
		p.names[id], p.desc[id] = i.Name, d.Desc()
	}
	return p, nil
}

// topicLine is the output for an event: keys by index, each a JSON array, or null if the index has no entry.
type topicLine struct {
	Kind    string                       `json:"kind"`
	VBucket uint16                       `json:"vbucket"`
	VBUUID  uint64                       `json:"vbuuid,string"`
	Seqno   uint64                       `json:"seqno"`
	ID      string                       `json:"id,omitempty"`
	Keys    map[string][]json.RawMessage `json:"keys,omitempty"`
}

// topicRollback is the output for a rollback of KV: earlier output of the vbucket above seqno is void.
type topicRollback struct {
	Kind    string `json:"kind"` // Rollback
	VBucket uint16 `json:"vbucket"`
	Seqno   uint64 `json:"seqno"`
}

// rollback prints a rollback, which does not count toward --count.
func (p *topicPrinter) rollback(_ context.Context, vbucket uint16, seqno uint64) error {
	if p.ended {
		return errEnough
	}
	return write(p.out.Out, formatJSONL, topicRollback{Kind: "Rollback", VBucket: vbucket, Seqno: seqno})
}

// keys returns an event's keys by index name; nil if it has none.
func (p *topicPrinter) keys(ev *keyversion.Event) (map[string][]json.RawMessage, error) {
	if len(ev.Statements) == 0 {
		return nil, nil //nolint:nilnil // no keys
	}
	all := map[string][]json.RawMessage{}
	for _, st := range ev.Statements {
		name := cmp.Or(p.names[st.Index], st.Index.String()) // it may have been created after the tail began
		keys := all[name]
		for _, k := range st.Keys {
			text, err := collate.DecodeComposite(nil, k, p.desc[st.Index])
			if err != nil {
				return nil, err
			}
			keys = append(keys, text)
		}
		all[name] = keys
	}
	return all, nil
}

func (p *topicPrinter) handle(_ context.Context, ev *keyversion.Event) error {
	switch {
	case p.ended:
		return errEnough
	case ev.Kind == keyversion.Sync && !p.syncs:
		return nil
	}
	l := topicLine{Kind: ev.Kind.String(), VBucket: ev.VBucket, VBUUID: ev.VBUUID, Seqno: ev.Seqno, ID: string(ev.DocID)}
	var err error
	if l.Keys, err = p.keys(ev); err != nil {
		return err
	}
	if err := write(p.out.Out, formatJSONL, l); err != nil {
		return err
	}
	if p.left > 0 {
		if p.left--; p.left == 0 {
			p.ended = true
			return errEnough
		}
	}
	return nil
}

package client

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

// Intervals at which WaitReady requests the indexes.
const (
	pollEvery  = 100 * time.Millisecond
	pollSlowly = time.Second // while an event stream reports their changes; it does not report progress
	maxRun     = 1000        // indexes requested at once
)

// When WaitReady reports that a build waits: at first, and while that lasts.
const (
	stalledAfter = 5 * time.Second
	stalledAgain = time.Minute
)

// WaitReady waits until the indexes are ready. It calls progress from time to time with the mean of their progress in
// percent. An index in state error, or one that no longer exists, ends the wait with an error that names it.
func (c *Client) WaitReady(ctx context.Context, ids []index.ID, progress func(percent float64)) error {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	changed := &changes{client: c, ids: ids, signal: make(chan struct{}, 1)}
	defer changed.end()
	stall := stalls{report: c.Stalled}
	for waits := ""; ; {
		list, err := c.indexesOf(ctx, ids)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w%s", err, attached(waits))
		}
		if err != nil {
			return err
		}
		sum, ready := 0.0, 0
		if sum, ready, waits, err = readiness(&list, ids); err != nil {
			return err
		}
		if progress != nil && len(ids) > 0 {
			progress(sum / float64(len(ids)))
		}
		stall.see(waits)
		if ready == len(ids) {
			return nil
		}
		changed.begin(ctx, list.CAS)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d indexes are ready: %w%s", ready, len(ids), ctx.Err(), attached(waits))
		case <-time.After(changed.pause()):
		case <-changed.signal:
		}
	}
}

// indexesOf lists those of the indexes that exist, possibly with others: each run of consecutive ids is one page. ids
// are ascending. CAS is that of the first page.
func (c *Client) indexesOf(ctx context.Context, ids []index.ID) (all v1.IndexList, err error) {
	for n := 0; len(ids) > 0; ids = ids[n:] {
		for n = 1; n < min(len(ids), maxRun) && ids[n] == ids[n-1]+1; n++ {
		}
		q := url.Values{"limit": {strconv.Itoa(n)}}
		if ids[0] > 1 {
			q.Set("after", (ids[0] - 1).String())
		}
		var page v1.IndexList
		if err := c.call(ctx, http.MethodGet, "/v1/indexes"+query(q), nil, nil, &page); err != nil {
			return v1.IndexList{}, err
		}
		all.CAS = cmp.Or(all.CAS, page.CAS)
		all.Indexes = append(all.Indexes, page.Indexes...)
	}
	return all, nil
}

// readiness returns the sum of the indexes' progress in percent, how many of them are ready, and what the first of
// the others waits for. An index in state error, or one that no longer exists, is an error.
func readiness(list *v1.IndexList, ids []index.ID) (sum float64, ready int, waits string, err error) {
	byID := map[index.ID]*v1.IndexInfo{}
	for n := range list.Indexes {
		byID[list.Indexes[n].ID] = &list.Indexes[n]
	}
	for _, id := range ids {
		i, ok := byID[id]
		switch {
		case !ok || i.State == index.Dropping:
			return 0, 0, "", fmt.Errorf("index %s was dropped while waiting for it", id)
		case i.State == index.Error:
			return 0, 0, "", fmt.Errorf("index %s on %s is in state error: %s", i.Name, i.Bucket, i.Reason)
		case i.State == index.Maintenance:
			ready, sum = ready+1, sum+100
		default:
			sum += i.Progress
			waits = cmp.Or(waits, waitsOf(i))
		}
	}
	return sum, ready, waits, nil
}

// stalls reports builds that wait.
type stalls struct {
	report func(why string) // nil: not reported
	next   time.Time        // when to report, if it still waits; zero: it does not wait
}

// see records what a build waits for, "" if it makes progress. The text changes while it waits, because it contains
// times.
func (s *stalls) see(waits string) {
	now := time.Now()
	switch {
	case waits == "" || s.report == nil:
		s.next = time.Time{}
	case s.next.IsZero():
		s.next = now.Add(stalledAfter)
	case !now.Before(s.next):
		s.next = now.Add(stalledAgain)
		s.report(waits)
	}
}

// attached returns text as the end of a sentence, "" if it is empty.
func attached(text string) string {
	if text == "" {
		return ""
	}
	return "; " + text
}

// waitsOf returns what a build waits for, "" if it makes progress.
func waitsOf(i *v1.IndexInfo) string {
	if len(i.WaitingFor) == 0 {
		return ""
	}
	return fmt.Sprintf("index %s on %s is waiting: %s", i.Name, i.Bucket, strings.Join(i.WaitingFor, "; "))
}

// changes signals changes of some indexes while it is connected to a server's event stream: WaitReady can then poll
// less often. All methods but note are called by one goroutine.
type changes struct {
	client *Client
	ids    []index.ID    // ascending
	signal chan struct{} // capacity 1: an index has changed

	connected atomic.Bool        // an event stream is connected
	cancel    context.CancelFunc // nil: not started yet
	running   sync.WaitGroup
}

// begin starts watching for changes after a cas, on its first call.
func (t *changes) begin(ctx context.Context, cas uint64) {
	if t.cancel != nil {
		return
	}
	ctx, t.cancel = context.WithCancel(ctx)
	w := &watching{client: t.client, kinds: string(statecontext.EventIndex), silence: watchSilence, yield: t.note,
		opened: func() { t.connected.Store(true) }}
	if cas != 0 {
		w.id = formatUint(cas)
	}
	t.running.Go(func() {
		for ctx.Err() == nil {
			_ = w.stream(ctx, t.client.servers[int(t.client.next.Load())%len(t.client.servers)])
			t.connected.Store(false)
			select {
			case <-ctx.Done():
			case <-time.After(pollSlowly):
			}
		}
	})
}

// note implements the yield of a watch.
func (t *changes) note(e WatchEvent, _ error) bool {
	ours := func(c v1.Change) bool {
		_, ok := slices.BinarySearch(t.ids, c.Index)
		return ok
	}
	if e.Snapshot != nil || slices.ContainsFunc(e.Changes, ours) {
		select {
		case t.signal <- struct{}{}:
		default:
		}
	}
	return true
}

// pause returns how long to wait before the next request.
func (t *changes) pause() time.Duration {
	if t.connected.Load() {
		return pollSlowly
	}
	return pollEvery
}

func (t *changes) end() {
	if t.cancel != nil {
		t.cancel()
	}
	t.running.Wait()
}

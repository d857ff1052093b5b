package projector

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemark/index"
	"tidemark/projector/core"
)

// sides holds the side streams that are open or being opened.
type sides struct {
	of       index.ProjectorID
	readings readings
	drainFor time.Duration // sideDrainTimeout except in tests

	mu   sync.Mutex
	open map[core.SideKey]*side
}

// put adds a side stream, and cancels and returns those that it replaces: one of the same topic, and those of an
// earlier process of the same indexer.
func (l *sides) put(s *side) (old []*side, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := make([]core.SideStream, 0, len(l.open))
	for key, o := range l.open {
		open = append(open, core.SideStream{SideKey: key, Target: o.target})
	}
	replaced, err := core.MakeRoom(l.of, open, &core.SideStream{SideKey: s.key, Target: s.target})
	if err != nil {
		return nil, err
	}
	for _, key := range replaced {
		old = append(old, l.open[key])
	}
	for _, o := range old {
		o.cancel(errSideReplaced)
		delete(l.open, o.key)
	}
	l.open[s.key] = s
	return old, nil
}

// remove removes a side stream, unless another one has taken its place.
func (l *sides) remove(s *side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[s.key] == s {
		delete(l.open, s.key)
	}
}

// get returns the side stream of a topic and bucket, nil if there is none.
func (l *sides) get(topic, bucket string) *side {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[core.SideKey{Topic: topic, Bucket: bucket}]
}

// all returns the side streams whose keys are wanted.
func (l *sides) all(wanted func(core.SideKey) bool) []*side {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.Collect(maps.Values(l.open))
	return slices.DeleteFunc(list, func(s *side) bool { return !wanted(s.key) })
}

// count returns the number of side streams.
func (l *sides) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// drop ends streams of a topic's side stream of a bucket, asynchronously.
func (l *sides) drop(topic, bucket string, vbuckets []uint16) {
	if s := l.get(topic, bucket); s != nil {
		s.dropped.put(vbuckets)
	}
}

// stop ends the side streams of a topic and waits until they have ended.
func (l *sides) stop(ctx context.Context, topic string) error {
	all := l.all(func(key core.SideKey) bool { return key.Topic == topic })
	for _, s := range all {
		s.cancel(errSideStopped)
	}
	for _, s := range all {
		select {
		case <-s.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

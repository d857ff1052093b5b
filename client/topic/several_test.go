package topic_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client/topic"
	"tidemark/index"
	"tidemark/internal/testing/ports"
	"tidemark/projector"
	"tidemark/projector/core"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// streams returns the open streams of a subscription's topics, by projector.
func streams(t *testing.T, id string, admins ...string) (open []int) {
	t.Helper()
	c := projectorclient.New(1, nil)
	defer c.Close()
	open = make([]int, len(admins))
	for i, admin := range admins {
		list, err := c.Topics(t.Context(), admin)
		for began := time.Now(); err != nil; list, err = c.Topics(t.Context(), admin) { // one query may take 2 s
			if time.Since(began) > hangLimit {
				t.Fatal(err)
			}
		}
		for _, one := range list.Topics {
			if strings.HasPrefix(one.Topic, "/backfill/"+id+"/") {
				open[i] += one.VBuckets
			}
		}
	}
	return open
}

func awaitStreams(t *testing.T, id string, want []int, admins ...string) {
	t.Helper()
	var got []int
	for deadline := time.Now().Add(hangLimit); ; time.Sleep(5 * time.Millisecond) {
		if got = streams(t, id, admins...); slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v streams are open at the projectors, want %v", got, want)
		}
	}
}

// held is a proxy in front of a projector's admin server whose requests wait until it is released.
func held(t *testing.T, admin string) (url_ string, release func()) {
	t.Helper()
	target, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	wait, once := make(chan struct{}), sync.Once{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		select {
		case <-wait:
		case <-r.In.Context().Done():
		}
		r.SetURL(target)
	}}
	server := httptest.NewServer(proxy)
	release = func() { once.Do(func() { close(wait) }) }
	t.Cleanup(func() { release(); server.Close() })
	return server.URL, release
}

// TestSeveralProjectorsAtOneNode: if two projectors host the same vbuckets, and each begins some first, each vbucket
// is streamed once; when one projector ends, the other has all, and when the subscription ends, none has any.
func TestSeveralProjectorsAtOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	share, err := core.ParseShare("0-3")
	if err != nil {
		t.Fatal(err)
	}
	one, stopOne := w.another("p1", share)
	two, _ := w.another("p1", core.Share{})
	late, release := held(t, two)
	want := map[string]string{}
	write := func(from, to int) {
		for i := from; i < to; i++ {
			key := fmt.Sprint("doc", i)
			w.set(key, i)
			want[key] = fmt.Sprintf("[%d]", i)
		}
	}
	write(0, 40)
	seen := newSubscriber()
	sub, err := topic.Open(topic.Config{ID: "audit", Bucket: bucket, Indexes: []string{"by_f1"}, Handle: seen.handle,
		Projectors: func(context.Context) ([]string, error) { return []string{one, late}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	stop := running(t, sub.Run)
	for deadline := time.Now().Add(hangLimit); sub.Indexes() == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the first projector does not answer")
		}
	}
	release() // it begins everything, also what the first one delivers
	seen.await(t, want)
	awaitStreams(t, "audit", []int{4, 4}, one, two)
	write(40, 80)
	seen.await(t, want)
	if got := streams(t, "audit", one, two); !slices.Equal(got, []int{4, 4}) {
		t.Errorf("%v streams are open while both projectors run", got)
	}
	stopOne()
	write(80, 120)
	seen.await(t, want)
	awaitStreams(t, "audit", []int{8}, two)
	stop()
	awaitStreams(t, "audit", []int{0}, two)
}

// another runs one more projector at the KV node, and sends it the definitions.
func (w *world) another(id index.ProjectorID, share core.Share) (admin string, stop func()) {
	w.t.Helper()
	p, err := projector.Open(projector.Config{ID: id, Managers: []string{w.manager.URL}, Admin: "127.0.0.1:0",
		KV: w.kvAddr, User: "u", Password: "secret", Workers: 1, Share: share})
	if err != nil {
		w.t.Fatal(err)
	}
	stop = running(w.t, p.Run)
	admin = "http://" + p.AdminAddr()
	w.define(admin)
	return admin, stop
}

// TestTopicsOfAKilledSubscriber: topics that a killed subscriber has left with RetryForever end when the next process
// of its id runs, at any port; topics of others stay.
func TestTopicsOfAKilledSubscriber(t *testing.T) {
	w := newWorld(t)
	w.set("doc", 1)
	admin := w.admin
	c := projectorclient.New(1, nil)
	defer c.Close()
	listen := ports.Addr(t)
	for id, endpoint := range map[string]string{"audit/7": ports.Addr(t), "audit/8": listen, "auditor/7": ports.Addr(t),
		"audit/x": ports.Addr(t)} {
		if _, err := c.Subscribe(t.Context(), admin, &wire.Subscribe{ID: id, Bucket: bucket, Endpoint: endpoint, Counter: 7,
			RetryForever: true}); err != nil {
			t.Fatal(err)
		}
	}
	seen := newSubscriber()
	sub, err := topic.Open(topic.Config{ID: "audit", Bucket: bucket, Indexes: []string{"by_f1"}, Handle: seen.handle,
		Projectors: w.projectors, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	subscribe := func(counter time.Time, endpoint string) {
		t.Helper()
		n := uint64(counter.UnixNano())
		if _, err := c.Subscribe(t.Context(), admin, &wire.Subscribe{ID: fmt.Sprintf("audit/%d", n), Bucket: bucket,
			Endpoint: endpoint, Counter: n, RetryForever: true}); err != nil {
			t.Fatal(err)
		}
	}
	subscribe(time.Now().Add(55*time.Second), ports.Addr(t)) // of a process that began later
	stop := running(t, sub.Run)
	seen.await(t, map[string]string{"doc": "[1]"})
	// Its own, that of the later process, and audit/x, which is not of this subscription.
	awaitStreams(t, "audit", []int{3 * vbuckets}, admin)
	if got := streams(t, "auditor", admin); !slices.Equal(got, []int{vbuckets}) {
		t.Errorf("another subscription has %v streams", got)
	}
	// A projector that could not be reached is detected by the data it sends, even if the clock has been set back since.
	for _, counter := range []time.Time{time.Unix(0, 9), time.Now().Add(20 * time.Second), time.Now().Add(time.Hour)} {
		subscribe(counter, listen)
		awaitStreams(t, "audit", []int{3 * vbuckets}, admin)
	}
	stop()
	awaitStreams(t, "audit", []int{2 * vbuckets}, admin)
}

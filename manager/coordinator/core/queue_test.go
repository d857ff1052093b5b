package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/streams"
)

// starting returns a StartStreams message for some vbuckets.
func starting(bucket string, counter uint64, vbuckets ...uint16) Send {
	s := StartStreams{Bucket: BucketRef{Name: bucket}, Incarnation: index.Incarnation{Counter: counter}}
	for _, v := range vbuckets {
		s.Starts = append(s.Starts, streams.Start{VBucket: v})
	}
	return Send{Lane: Commands, Message: s}
}

func polling(bucket string) Send {
	return Send{Lane: Commands, Key: "poll/" + bucket, Message: Poll{Bucket: BucketRef{Name: bucket}}}
}

func stopping(bucket string) Send {
	return Send{Lane: Commands, Message: StopStreams{Bucket: BucketRef{Name: bucket}}}
}

// words describes a taken message.
func words(t Send) string {
	switch m := t.Message.(type) {
	case StartStreams:
		s := fmt.Sprint("start ", m.Bucket.Name, " ", m.Incarnation.Counter)
		for _, v := range m.Starts {
			s += fmt.Sprint(" ", v.VBucket)
		}
		return s
	case StopStreams:
		return "stop " + m.Bucket.Name
	case Poll:
		return "poll " + m.Bucket.Name
	}
	return t.Key
}

// TestCommandsWaitForTheirBucketOnly checks that Take returns the oldest command of a bucket with none in progress,
// so that a slow bucket delays no other and each bucket's commands stay in order, and that a start that is replaced
// while it waits is sent once.
func TestCommandsWaitForTheirBucketOnly(t *testing.T) {
	for _, c := range []struct {
		name string
		put  []Send
		do   string // take, or the position of the taken one that is done
		want string
	}{
		{"one bucket in order", []Send{starting("a", 1, 1), stopping("a"), polling("a")}, "take take 0 take 1 take",
			"start a 1 1, none, stop a, poll a"},
		{"another one beside it", []Send{starting("a", 1, 1), starting("a", 2, 2), stopping("b"), starting("b", 1, 1)},
			"take take take 0 take 1 take", "start a 1 1, stop b, none, start a 2 2, start b 1 1"},
		{"a start anew", []Send{starting("a", 1, 1, 2), starting("b", 1, 1), starting("a", 2, 1)},
			"take take 0 take", "start a 1 2, start b 1 1, start a 2 1"},
		{"all starts anew", []Send{starting("a", 1, 1, 2), starting("b", 1, 1), starting("a", 2, 1), starting("a", 3, 1, 2)},
			"take take 1 take", "start b 1 1, start a 3 1 2, none"},
		{"by key in one place", []Send{polling("a"), polling("b"), polling("a")}, "take take 0 take",
			"poll a, poll b, none"},
		{"a query is no command", []Send{{Lane: Queries, Key: "x", Message: FetchLogs{Bucket: BucketRef{Name: "a"}}},
			{Lane: Queries, Key: "y", Message: FetchLogs{Bucket: BucketRef{Name: "a"}}}}, "take take", "x, y"},
	} {
		var q Queue
		for _, p := range c.put {
			q.Put(p)
		}
		var taken []Send
		var got []string
		for what := range strings.FieldsSeq(c.do) {
			var i int
			if _, err := fmt.Sscan(what, &i); err == nil {
				q.Done(taken[i])
				continue
			}
			if sent, ok := q.Take(); ok {
				taken, got = append(taken, sent), append(got, words(sent))
			} else {
				got = append(got, "none")
			}
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s: %s; want %s", c.name, s, c.want)
		}
	}
}

// TestStartsOfOthersStay checks that removing vbuckets from a waiting start leaves the same start in other lanes
// unchanged.
func TestStartsOfOthersStay(t *testing.T) {
	var q, other Queue
	one := starting("a", 1, 1, 2, 3)
	q.Put(one)
	other.Put(one)
	q.Put(starting("a", 2, 1))
	if sent, _ := other.Take(); words(sent) != "start a 1 1 2 3" {
		t.Error(words(sent))
	}
}

// TestNoBucketIsDropped checks that messages with a key are never dropped, however many buckets there are (once the
// first of more than LaneLength were never requested), and that messages without a key are bounded.
func TestNoBucketIsDropped(t *testing.T) {
	const keyed, loose = 2 * LaneLength, LaneLength + 3
	var q Queue
	for i := range keyed {
		q.Put(Send{Lane: Checks, Key: fmt.Sprint("bucket/", i), Message: CheckBucket{}})
	}
	for i := range loose {
		q.Put(Send{Lane: Syncs, Message: RequestSync{Want: []uint64{uint64(i)}}})
	}
	if q.Len() != keyed+LaneLength {
		t.Fatal(q.Len())
	}
	var keys []string
	for range keyed {
		sent, _ := q.Take()
		keys = append(keys, sent.Key)
	}
	if keys[0] != "bucket/0" || keys[keyed-1] != fmt.Sprint("bucket/", keyed-1) || slices.Contains(keys, "") {
		t.Error(keys[0], keys[keyed-1])
	}
	if sent, _ := q.Take(); sent.Message.(RequestSync).Want[0] != loose-LaneLength {
		t.Errorf("%+v is the oldest that is left", sent.Message)
	}
}

package core

import (
	"fmt"
	"strconv"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/wire"
)

// MaxBuckets bounds the buckets that a request may name, and those that a projector streams.
const MaxBuckets = 1000

// ParseTopic returns a topic's class, and for a catchup topic its indexer.
func ParseTopic(topic string) (keyversion.Class, index.NodeID, error) {
	bad := func(why string) (keyversion.Class, index.NodeID, error) {
		return 0, 0, errcode.Refuse(errcode.BadRequest, "topic %q: %s; want /maintenance, /backfill/<id> or "+
			"/catchup/<indexer>/<id>", topic, why)
	}
	if len(topic) > wire.MaxTopic {
		return bad(fmt.Sprintf("%d bytes; the limit is %d", len(topic), wire.MaxTopic))
	}
	if topic == wire.MaintenanceTopic {
		return keyversion.ClassMaintenance, 0, nil
	}
	parts := strings.Split(topic, "/")
	for _, part := range parts[1:] {
		if !wire.IsVisible(part) {
			return bad("a part of it is empty or has characters other than visible ASCII")
		}
	}
	if len(parts) < 3 || parts[0] != "" {
		return bad("no such class")
	}
	switch parts[1] {
	case "backfill":
		return keyversion.ClassBackfill, 0, nil
	case "catchup":
		n, err := strconv.ParseUint(parts[2], 10, 8)
		if err != nil || index.NodeID(n) > index.MaxNodeID {
			return bad(fmt.Sprintf("the indexer must be a number up to %d", index.MaxNodeID))
		}
		return keyversion.ClassCatchup, index.NodeID(n), nil
	}
	return bad("no such class")
}

// TopicID returns the topic id byte of PR-14.
func TopicID(class keyversion.Class, node index.NodeID) uint8 {
	if class == keyversion.ClassCatchup {
		return uint8(node)
	}
	return uint8(class)
}

// CheckRequest returns the class and the topic id of a request for streams. It reports what is wrong with the request
// before any stream is begun.
func CheckRequest(req *wire.StreamRequest) (class keyversion.Class, id uint8, err error) {
	class, node, err := ParseTopic(req.Topic)
	if err == nil {
		err = checkRequest(req, class, node)
	}
	return class, TopicID(class, node), err
}

func checkRequest(req *wire.StreamRequest, class keyversion.Class, node index.NodeID) error {
	bad := func(format string, args ...any) error {
		return errcode.Refuse(errcode.BadRequest, "topic %q: %s", req.Topic, fmt.Sprintf(format, args...))
	}
	if len(req.Buckets) == 0 || len(req.Buckets) > MaxBuckets {
		return bad("%d buckets, want 1 to %d", len(req.Buckets), MaxBuckets)
	}
	names := map[string]bool{}
	for i := range req.Buckets {
		b := &req.Buckets[i]
		if b.Bucket == "" || names[b.Bucket] {
			return bad("bucket %q is given twice, or a bucket has no name", b.Bucket)
		}
		names[b.Bucket] = true
		if err := b.Restart.Check(); err != nil {
			return bad("bucket %q: restart timestamp: %v", b.Bucket, err)
		}
		if b.Restart.Len() == 0 {
			return bad("bucket %q: the restart timestamp has no vbucket", b.Bucket)
		}
	}
	if class == keyversion.ClassMaintenance {
		if req.Side != nil {
			return bad("side is allowed only for /backfill/ and /catchup/")
		}
		return nil
	}
	return checkSide(req, class, node, bad)
}

// checkSide checks what only side streams have: an endpoint, copies or indexes, and an end.
func checkSide(req *wire.StreamRequest, class keyversion.Class, node index.NodeID,
	bad func(format string, args ...any) error) error {
	switch t := req.Side; {
	case t == nil || t.Endpoint == "" || (len(t.Copies) == 0) == (len(t.Indexes) == 0):
		return bad("want side, with an endpoint and either indexes or copies")
	case class == keyversion.ClassCatchup && t.Node != node:
		return bad("it belongs to indexer %d, the request to %d", node, t.Node)
	}
	for i := range req.Buckets {
		for n := range req.Buckets[i].Restart.Len() {
			if s := req.Buckets[i].Restart.At(n); s.End == 0 {
				return bad("bucket %q, vbucket %d: a side stream needs an end", req.Buckets[i].Bucket, s.VBucket)
			}
		}
	}
	return nil
}

package server

import (
	"fmt"
	"strconv"
	"strings"

	"tidemark/kv/store"
	"tidemark/mcbp"
)

// stat answers a STAT request: one answer per statistic, then an empty one.
func (c *conn) stat(f mcbp.Frame) {
	group, argument, _ := strings.Cut(string(f.Key), " ")
	emit := func(key, value string) {
		c.reply(f.Header, mcbp.Frame{Key: []byte(key), Value: []byte(value)}, nil)
	}
	switch group {
	case "", "all":
		c.statAll(emit)
	case "dcp":
		c.statDCP(emit)
	case "vbucket", "vbucket-details", "vbucket-seqno", "failovers":
		first, last := 0, c.bucket.Store.VBuckets()-1
		if argument != "" {
			n, err := strconv.ParseUint(argument, 10, 16)
			if err != nil {
				c.status(f.Header, mcbp.StatusInvalid, nil)
				return
			}
			if int(n) > last {
				c.notMyVBucket(f.Header)
				return
			}
			first, last = int(n), int(n)
		}
		for vb := first; vb <= last; vb++ {
			statVBucket(group, c.bucket.Store.VBucket(uint16(vb)).Info(), emit)
		}
	default:
		c.status(f.Header, mcbp.StatusKeyNotFound, nil)
		return
	}
	c.status(f.Header, mcbp.StatusOK, nil)
}

func statVBucket(group string, i store.Info, emit func(key, value string)) {
	if i.State == store.Dead {
		return
	}
	name := fmt.Sprintf("vb_%d", i.ID)
	number := func(key string, n uint64) { emit(name+":"+key, strconv.FormatUint(n, 10)) }
	switch group {
	case "vbucket":
		emit(name, i.State.String())
	case "vbucket-details":
		emit(name, i.State.String())
		number("num_items", uint64(i.Items))
		number("num_tombstones", uint64(i.Tombstones))
		number("high_seqno", i.High)
		number("purge_seqno", i.Purge)
		number("max_cas", i.MaxCas)
		number("uuid", i.Failover[0].UUID)
	case "vbucket-seqno":
		number("high_seqno", i.High)
		number("abs_high_seqno", i.High)
		number("last_persisted_seqno", i.High)
		number("purge_seqno", i.Purge)
		number("uuid", i.Failover[0].UUID)
		number("last_persisted_snap_start", i.High)
		number("last_persisted_snap_end", i.High)
	case "failovers":
		number("num_entries", uint64(len(i.Failover)))
		for n, e := range i.Failover {
			number(fmt.Sprintf("%d:id", n), e.UUID)
			number(fmt.Sprintf("%d:seq", n), e.Seqno)
		}
	}
}

func (c *conn) statAll(emit func(key, value string)) {
	counters, b := &c.srv.counters, c.bucket.Store
	items, active := 0, 0
	for i := range b.VBuckets() {
		if info := b.VBucket(uint16(i)).Info(); info.State == store.Active {
			active++
			items += info.Items
		}
	}
	number := func(key string, n int64) { emit(key, strconv.FormatInt(n, 10)) }
	now := c.srv.opts.Now()
	emit("version", c.srv.opts.Version)
	number("time", now.Unix())
	number("uptime", int64(now.Sub(c.srv.started).Seconds()))
	number("curr_connections", counters.Connections.Load())
	number("total_connections", counters.ConnectionsTotal.Load())
	number("auth_errors", counters.AuthFailures.Load())
	number("curr_items", int64(items))
	number("vb_active_num", int64(active))
	number("cmd_get", counters.Gets.Load())
	number("get_misses", counters.GetMisses.Load())
	number("cmd_set", counters.Mutations.Load())
	number("ep_num_not_my_vbuckets", counters.NotMyVBucket.Load())
	number("ep_tmp_oom_errors", counters.NoMemory.Load())
	number("ep_db_file_size", b.DiskBytes())
	number("ep_db_data_size", b.LiveBytes())
	number("dcp_open_requests", counters.DCPOpens.Load())
	number("dcp_stream_requests", counters.StreamRequests.Load())
}

func (c *conn) statDCP(emit func(key, value string)) {
	for _, p := range c.srv.producers(c.bucket.Store.Name()) {
		s := p.status()
		prefix := "eq_dcpq:" + p.name + ":"
		emit(prefix+"type", "producer")
		emit(prefix+"num_streams", strconv.Itoa(s.streams))
		emit(prefix+"unacked_bytes", strconv.FormatInt(s.unacked, 10))
		emit(prefix+"max_buffer_bytes", strconv.FormatInt(s.buffer, 10))
		emit(prefix+"items_sent", strconv.FormatInt(s.items, 10))
		emit(prefix+"total_bytes_sent", strconv.FormatInt(s.bytes, 10))
	}
}

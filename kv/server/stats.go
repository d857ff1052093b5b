package server

import (
	"fmt"
	"strconv"
	"strings"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// statVBuckets emits the statistics of one vbucket, or of all. It returns false if it has refused the request.
func (c *conn) statVBuckets(f mcbp.Frame, group, argument string, emit func(key, value string)) bool {
	first, last := 0, c.bucket.Store.VBuckets()-1
	if argument != "" {
		n, err := strconv.ParseUint(argument, 10, 16)
		if err != nil {
			c.status(f.Header, mcbp.StatusInvalid, nil)
			return false
		}
		if int(n) > last {
			c.notMyVBucket(f.Header)
			return false
		}
		first, last = int(n), int(n)
	}
	for vb := first; vb <= last; vb++ {
		statVBucket(group, c.bucket.Store.VBucket(uint16(vb)).Info(), emit)
	}
	return true
}

// stat handles a STAT request: one answer per statistic, then an empty one.
func (c *conn) stat(f mcbp.Frame) {
	if c.moods().Has(NoStats) {
		c.refuse(f.Header, mcbp.StatusNoAccess, "this user lacks the right to read statistics")
		return
	}
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
		if !c.statVBuckets(f, group, argument, emit) {
			return
		}
	case "key", "vkey":
		c.statKey(f, argument, emit)
		return
	default:
		if !c.statBucket(group, emit) {
			c.status(f.Header, mcbp.StatusKeyNotFound, nil)
			return
		}
	}
	c.status(f.Header, mcbp.StatusOK, nil)
}

// statBucket emits the small groups; it returns false for an unknown group.
func (c *conn) statBucket(group string, emit func(key, value string)) bool {
	b := c.bucket.Store
	switch group {
	case "uuid":
		emit("uuid", b.UUID())
	case "warmup":
		state := "done"
		if c.srv.warming() {
			state = "loading data"
		}
		emit("ep_warmup", "enabled")
		emit("ep_warmup_state", state)
		emit("ep_warmup_thread", map[bool]string{true: "running", false: "complete"}[state != "done"])
	case "memory":
		emit("mem_used", strconv.FormatInt(b.Quota().Used(), 10))
		emit("ep_max_size", strconv.FormatInt(b.Quota().Limit(), 10))
	case "settings":
		emit("maxconns", strconv.Itoa(c.srv.opts.MaxConnections))
		emit("item_size_max", strconv.Itoa(store.MaxValueBytes))
		emit("sasl_mechanisms", c.srv.auth.mechanisms(c.plainAllowed()))
	case "collections", "scopes":
		c.statCollections(group == "scopes", emit)
	case "dcpagg":
		c.statDCPSum(emit)
	case "reset": // totals are never reset; known clients send it anyway
	default:
		return false
	}
	return true
}

// statKey answers "key KEY VBUCKET": what is known about one document besides its value.
func (c *conn) statKey(f mcbp.Frame, argument string, emit func(key, value string)) {
	if c.deniedIn(f.Header, needsRead, c.may().In(mcbp.DefaultCollection)) {
		return
	}
	at := strings.LastIndexByte(argument, ' ')
	vb, err := strconv.ParseUint(argument[at+1:], 10, 16)
	if err != nil || at < 1 || at > store.MaxKeyBytes {
		c.refuse(f.Header, mcbp.StatusInvalid, "want: key KEY VBUCKET")
		return
	}
	v := c.bucket.Store.VBucket(uint16(vb))
	if v == nil {
		c.notMyVBucket(f.Header)
		return
	}
	r, err := v.Get([]byte(argument[:at]))
	if err == nil {
		err = r.Ticket.Wait()
	}
	if err != nil {
		c.failed(f.Header, err, r.Ticket, mcbp.DefaultCollection)
		return
	}
	emit("key_is_dirty", "false")
	emit("key_exptime", strconv.FormatUint(uint64(r.Doc.Expiry), 10))
	emit("key_flags", strconv.FormatUint(uint64(r.Doc.Flags), 10))
	emit("key_cas", strconv.FormatUint(r.Doc.Cas, 10))
	emit("key_vb_state", store.Active.String())
	c.status(f.Header, mcbp.StatusOK, nil)
}

// activeItems returns the numbers of documents in active vbuckets and of active vbuckets.
func activeItems(b *store.Bucket) (items, vbuckets int) {
	for i := range b.VBuckets() {
		if info := b.VBucket(uint16(i)).Info(); info.State == store.Active {
			vbuckets++
			items += info.Items
		}
	}
	return items, vbuckets
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
		number("uuid", i.Failover[0].VBUUID)
	case "vbucket-seqno":
		number("high_seqno", i.High)
		number("abs_high_seqno", i.High)
		number("last_persisted_seqno", i.High)
		number("purge_seqno", i.Purge)
		number("uuid", i.Failover[0].VBUUID)
		number("last_persisted_snap_start", i.High)
		number("last_persisted_snap_end", i.High)
	case "failovers":
		number("num_entries", uint64(len(i.Failover)))
		for n, e := range i.Failover {
			number(fmt.Sprintf("%d:id", n), e.VBUUID)
			number(fmt.Sprintf("%d:seq", n), e.Seqno)
		}
	}
}

func (c *conn) statAll(emit func(key, value string)) {
	counters, b := &c.srv.counters, c.bucket.Store
	items, active := activeItems(b)
	number := func(key string, n int64) { emit(key, strconv.FormatInt(n, 10)) }
	now := c.srv.opts.Now()
	emit("version", c.srv.opts.Version)
	number("time", now.Unix())
	number("uptime", int64(now.Sub(c.srv.started).Seconds()))
	kind, full := "persistent", ""
	if c.moods().Has(Eviction) {
		kind, full = "ephemeral", "auto_delete"
	}
	emit("ep_bucket_type", kind)
	if full != "" {
		emit("ep_ephemeral_full_policy", full)
	}
	emit("ep_item_eviction_policy", "value_only")
	emit("ep_degraded_mode", strconv.FormatBool(c.srv.warming()))
	number("ep_"+kind+"_metadata_purge_age", int64(b.PurgeAfter().Seconds()))
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
	if trouble := b.DiskTrouble(); trouble != "" {
		emit(mcbp.StatDiskTrouble, trouble)
	}
	number("dcp_open_requests", counters.DCPOpens.Load())
	number("dcp_stream_requests", counters.StreamRequests.Load())
}

func (c *conn) statDCP(emit func(key, value string)) {
	for _, p := range c.srv.producers(c.bucket.Store.Name()) {
		s := p.status()
		prefix := "eq_dcpq:" + p.id.name + ":"
		emit(prefix+"type", "producer")
		emit(prefix+"num_streams", strconv.Itoa(s.streams))
		emit(prefix+"unacked_bytes", strconv.FormatInt(s.unacked, 10))
		emit(prefix+"max_buffer_bytes", strconv.FormatInt(s.buffer, 10))
		emit(prefix+"items_sent", strconv.FormatInt(s.items, 10))
		emit(prefix+"total_bytes_sent", strconv.FormatInt(s.bytes, 10))
	}
}

// statDCPSum emits the sums over the DCP connections of the bucket.
func (c *conn) statDCPSum(emit func(key, value string)) {
	var sum producerStatus
	producers := c.srv.producers(c.bucket.Store.Name())
	for _, p := range producers {
		s := p.status()
		sum.streams += s.streams
		sum.items += s.items
		sum.bytes += s.bytes
	}
	emit(":total:producer_count", strconv.Itoa(len(producers)))
	emit(":total:count", strconv.Itoa(len(producers)))
	emit(":total:num_streams", strconv.Itoa(sum.streams))
	emit(":total:items_sent", strconv.FormatInt(sum.items, 10))
	emit(":total:total_bytes", strconv.FormatInt(sum.bytes, 10))
}

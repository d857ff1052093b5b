package server

import (
	"encoding/json"
	"fmt"
	"slices"

	"tidemark/kv/access"
	"tidemark/kv/mcbp"
)

// maxAuthFailures is the number of failed authentications that end a connection.
const maxAuthFailures = 8

func (c *conn) hello(f mcbp.Frame) {
	asked, err := mcbp.DecodeFeatures(f.Value)
	if err != nil {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	var give []mcbp.Feature
	set := featureSet{}
	for _, x := range asked {
		if !c.srv.granted(x) || slices.Contains(give, x) {
			continue
		}
		give = append(give, x)
		switch x {
		case mcbp.FeatureMutationToken:
			set.tokens = true
		case mcbp.FeatureJSON:
			set.json = true
		case mcbp.FeatureXattr:
			set.xattr = true
		case mcbp.FeatureSnappy:
			set.snappy = true
		case mcbp.FeatureFlexibleFrames, mcbp.FeatureTracing:
			set.frames = c.srv.opts.Moods.Has(Frames)
		case mcbp.FeatureXerror:
			set.xerror = true
		case mcbp.FeatureCollections:
			set.collections = true
		case mcbp.FeatureDedupNMVB:
			set.dedupNMVB = true
		}
	}
	if c.dcp != nil { // a producer reads the features without a lock
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	c.value(f.Header, mcbp.AppendFeatures(nil, give)) // still in the old format
	c.features = set
}

// errorMap returns descriptions of the statuses of this server, for clients that do not know them.
func (c *conn) errorMap(f mcbp.Frame) {
	type entry struct {
		Name  string   `json:"name"`
		Desc  string   `json:"desc"`
		Attrs []string `json:"attrs"`
	}
	entries := map[string]entry{}
	for _, e := range [...]struct {
		status mcbp.Status
		desc   string
		attrs  []string
	}{
		{mcbp.StatusKeyNotFound, "the document does not exist", []string{"item-only"}},
		{mcbp.StatusKeyExists, "the document exists or has another cas", []string{"item-only"}},
		{mcbp.StatusTooBig, "the value is too large", []string{"item-only", "invalid-input"}},
		{mcbp.StatusInvalid, "the request is malformed", []string{"internal", "invalid-input"}},
		{mcbp.StatusNotStored, "there is no document to append to", []string{"item-only"}},
		{mcbp.StatusBadDelta, "the document is not a number", []string{"item-only", "invalid-input"}},
		{mcbp.StatusNotMyVBucket, "another node has the vbucket", []string{"fetch-config", "invalid-input"}},
		{mcbp.StatusNoBucket, "no bucket is selected", []string{"conn-state-invalidated"}},
		{mcbp.StatusAuthError, "not authenticated", []string{"conn-state-invalidated", "auth"}},
		{mcbp.StatusNoAccess, "the user lacks the right", []string{"auth"}},
		{mcbp.StatusUnknownFrameInfo, "a frame extra is unknown", []string{"support", "invalid-input"}},
		{mcbp.StatusUnknownCommand, "the command is unknown", []string{"support"}},
		{mcbp.StatusNoMemory, "the memory quota is used up", []string{"temp", "retry-later"}},
		{mcbp.StatusNotSupported, "the command is not supported here", []string{"support"}},
		{mcbp.StatusInternal, "internal error", []string{"internal", "conn-state-invalidated"}},
		{mcbp.StatusTemporary, "cannot be done now", []string{"temp", "retry-now"}},
		{mcbp.StatusUnknownCollection, "the collection does not exist", []string{"item-only"}},
		{mcbp.StatusUnknownScope, "the scope does not exist", []string{"item-only"}},
		{mcbp.StatusManifestAhead, "this node does not have the manifest of collections " +
			"yet", []string{"temp", "retry-later"}},
		{mcbp.StatusDurabilityInvalid, "there is no such durability level", []string{"item-only", "invalid-input"}},
		{mcbp.StatusDurabilityImpossible, "durability levels are not supported here", []string{"item-only", "support"}},
	} {
		entries[fmt.Sprintf("%x", uint16(e.status))] = entry{Name: e.status.String(), Desc: e.desc, Attrs: e.attrs}
	}
	body, err := json.Marshal(map[string]any{"version": 1, "revision": 1, "errors": entries})
	if err != nil {
		c.status(f.Header, mcbp.StatusInternal, nil)
		return
	}
	c.value(f.Header, body)
}

func (c *conn) saslAuth(f mcbp.Frame) error {
	if c.dcp != nil {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return nil
	}
	if c.authed {
		c.unauthSince = c.srv.opts.Now()
	}
	c.authed = false
	answer, in, err := c.sasl.start(string(f.Key), f.Value, c.plainAllowed())
	switch {
	case err != nil:
		return c.authFailed(f, err)
	case in:
		c.admitted()
		c.status(f.Header, mcbp.StatusOK, nil)
	default:
		c.reply(f.Header, mcbp.Frame{Header: mcbp.Header{VBucketOrStatus: uint16(mcbp.StatusAuthContinue)}, Value: answer},
			nil)
	}
	return nil
}

func (c *conn) saslStep(f mcbp.Frame) error {
	last, err := c.sasl.step(f.Value)
	if err != nil {
		return c.authFailed(f, err)
	}
	c.admitted()
	c.value(f.Header, last)
	return nil
}

// plainAllowed reports whether this connection may send a password in clear text.
func (c *conn) plainAllowed() bool { return c.srv.opts.AllowPlain || c.encrypted }

// admitted admits an authenticated client. Plain memcached clients do not know buckets: if they are allowed and there
// is exactly one bucket, it is selected for them.
func (c *conn) admitted() {
	c.authed, c.user = true, c.sasl.user
	if !c.srv.opts.AllowPlain || c.bucket != nil {
		return
	}
	if name, b := c.srv.only(); b != nil && c.mayIn(name, access.See) {
		c.enter(name, b)
	}
}

func (c *conn) authFailed(f mcbp.Frame, err error) error {
	c.srv.counters.AuthFailures.Add(1)
	c.authFailures++
	c.warn("authentication failed", "error", err)
	c.status(f.Header, mcbp.StatusAuthError, nil)
	if c.authFailures >= maxAuthFailures {
		return fmt.Errorf("%d failed authentications", c.authFailures)
	}
	return nil
}

// selectBucket selects a bucket in which the user has rights. Without rights the answer is the same for existing and
// unknown buckets.
func (c *conn) selectBucket(f mcbp.Frame) error {
	c.settle() // tickets of the previous bucket, which may be closed once it has no users
	b := c.srv.bucket(string(f.Key))
	switch {
	case c.dcp != nil:
		c.status(f.Header, mcbp.StatusInvalid, nil)
	case !c.mayIn(string(f.Key), access.See):
		c.status(f.Header, mcbp.StatusNoAccess, nil)
	case b == nil, !c.enter(string(f.Key), b):
		c.status(f.Header, mcbp.StatusKeyNotFound, nil)
	default:
		c.config = configSeen{}
		c.status(f.Header, mcbp.StatusOK, nil)
	}
	return nil
}

// clusterConfig answers with the cluster config, or without it if the client has this revision.
func (c *conn) clusterConfig(f mcbp.Frame) {
	known, ok, err := mcbp.DecodeKnownConfig(f.Extras)
	if err != nil {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	config, mayOmit := c.srv.clusterConfigOf(c.bucket)
	if config.JSON == nil {
		c.refuse(f.Header, mcbp.StatusTemporary, "no map has the bucket now")
		return
	}
	if ok && mayOmit && (known.RevEpoch > config.RevEpoch || known.RevEpoch == config.RevEpoch &&
		known.Rev >= config.Rev) {
		c.status(f.Header, mcbp.StatusOK, nil)
		return
	}
	c.config = configSeen{config.RevEpoch, config.Rev}
	c.reply(f.Header, mcbp.Frame{Header: mcbp.Header{Datatype: c.jsonType()}, Value: config.JSON}, nil)
}

// notMyVBucket answers that another node has the vbucket, with the config that names it. A client that has negotiated
// it gets each config only once.
func (c *conn) notMyVBucket(h mcbp.Header) {
	c.srv.counters.NotMyVBucket.Add(1)
	config, mayOmit := c.srv.clusterConfigOf(c.bucket)
	answer := mcbp.Frame{Header: mcbp.Header{VBucketOrStatus: uint16(mcbp.StatusNotMyVBucket)}}
	seen := configSeen{config.RevEpoch, config.Rev}
	if !mayOmit || !c.features.dedupNMVB || c.config != seen {
		answer.Value, answer.Datatype = config.JSON, c.jsonType()
		c.config = seen
	}
	c.reply(h, answer, nil)
}

func (c *conn) jsonType() mcbp.Datatype {
	if c.features.json {
		return mcbp.DatatypeJSON
	}
	return 0
}

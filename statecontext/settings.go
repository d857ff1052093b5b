package statecontext

import (
	"iter"
	"strings"

	"tidemark/errcode"
	"tidemark/stability"
)

// BucketSettings holds the settings that operators have made for a bucket. They belong to the bucket's name: they
// stay when the bucket is deleted and re-created.
type BucketSettings struct {
	Bucket string
	// StabilitySource is what moves the bucket's stability timestamps: "sync", "heartbeat", or empty for the leader's
	// configuration (IM-16).
	StabilitySource string
	ModifiedCAS     uint64
}

// SetBucketSettings replaces the settings of an existing bucket; an empty StabilitySource removes them.
type SetBucketSettings struct {
	Bucket, StabilitySource string
}

func (*SetBucketSettings) kind() kind { return kindSetBucketSettings }

func (c *SetBucketSettings) append(dst []byte) []byte {
	return appendString(appendString(dst, c.Bucket), c.StabilitySource)
}

func decodeSetBucketSettings(d *decoder) *SetBucketSettings {
	return &SetBucketSettings{Bucket: d.string(), StabilitySource: d.string()}
}

func (c *SetBucketSettings) apply(t *tx) *Rejection {
	b, old := t.s.Bucket(c.Bucket), t.s.BucketSettings(c.Bucket)
	if b == nil {
		return reject(errcode.UnknownBucket, "bucket %q is not registered; a bucket is registered with its first "+
			"index", c.Bucket)
	}
	if _, err := stability.ParseSource(c.StabilitySource); c.StabilitySource != "" && err != nil {
		return reject(errcode.InvalidArgument, "%v; empty for the value in the managers' configuration", err)
	}
	if c.StabilitySource == old.StabilitySource {
		return nil
	}
	settings := own(&t.s.settings, &t.owned.settings)
	if t.changed = true; c.StabilitySource == "" {
		settings.Delete(c.Bucket)
	} else {
		settings.Set(c.Bucket, &BucketSettings{Bucket: strings.Clone(c.Bucket), StabilitySource: c.StabilitySource,
			ModifiedCAS: t.cas})
	}
	t.emit(t.bucketEvent(b))
	t.forgetBucket(c.Bucket)
	return nil
}

// BucketSettings returns the settings of a bucket, or the zero value if it has none.
func (s *State) BucketSettings(bucket string) BucketSettings {
	if b, ok := s.settings.Get(bucket); ok {
		return *b
	}
	return BucketSettings{}
}

// AllBucketSettings returns the settings of all buckets, in the order of their names.
func (s *State) AllBucketSettings() iter.Seq[*BucketSettings] { return values(s.settings) }

func appendBucketSettings(dst []byte, b *BucketSettings) []byte {
	return appendUint(appendString(appendString(dst, b.Bucket), b.StabilitySource), b.ModifiedCAS)
}

func (d *decoder) bucketSettings() *BucketSettings {
	return &BucketSettings{Bucket: d.string(), StabilitySource: d.string(), ModifiedCAS: d.uint()}
}

func checkSettings(s *State) error {
	for b := range s.AllBucketSettings() {
		_, err := stability.ParseSource(b.StabilitySource)
		if err != nil || b.ModifiedCAS > s.cas || s.Bucket(b.Bucket) == nil {
			return broken("settings of bucket %q at %d: source %q; state at %d", b.Bucket, b.ModifiedCAS, b.StabilitySource,
				s.cas)
		}
	}
	return nil
}

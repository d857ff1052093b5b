package indexer

import (
	"context"
	"time"

	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/verify"
	"tidemark/timestamp"
	"tidemark/wire"
)

// verifyRole implements verify.Role.
type verifyRole struct{ *Indexer }

// ClusterID implements verify.Role.
func (r verifyRole) ClusterID() string { return r.identity.get().ClusterID }

// Definitions implements verify.Role.
func (r verifyRole) Definitions() wire.Definitions { return r.present() }

// View implements verify.Role.
func (r verifyRole) View(id index.ID) (scan.View, error) { return r.catalog.View(id) }

// Bucket implements verify.Role.
func (r verifyRole) Bucket(name string) (verify.Bucket, bool) {
	k := r.bucketNamed(name)
	return k, k != nil
}

// Stabilize implements verify.Role.
func (r verifyRole) Stabilize(ctx context.Context, bucket string, need timestamp.Vector,
	wait time.Duration) (wire.BucketStability, error) {
	return r.truth.Stabilize(ctx, bucket, need, wait)
}

// Unwell implements verify.Role.
func (r verifyRole) Unwell(source, why string) bool { return r.health.Set(source, why) }

// Report implements verify.Role.
func (r verifyRole) Report() { wake(r.report) }

package scan

import (
	"math/rand/v2"
	"slices"
	"sync"

	"tidemark/index"
)

const (
	// maxOver bounds the finished answers that one request to a node names.
	maxOver = 64
	// mostOver bounds the finished answers that are remembered per node. A node is not notified of older ones, and
	// keeps their snapshots until they expire.
	mostOver = 256
)

// over tracks answers for which nodes need not keep snapshots any more: answers in pages whose first page was the
// last, and long scans that have ended. The next request to a node names them; while a node gets no request, nothing
// needs the memory.
type over struct {
	mu      sync.Mutex
	pending map[index.NodeID][]Pages
}

func (o *over) add(p Pages, nodes []index.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range nodes {
		o.set(n, append(o.pending[n], p))
	}
}

// set keeps the newest answers to be named to a node. The caller holds the lock.
func (o *over) set(node index.NodeID, list []Pages) {
	if o.pending == nil {
		o.pending = map[index.NodeID][]Pages{}
	}
	o.pending[node] = list[max(0, len(list)-mostOver):]
}

// putBack restores the answers of a request that has not reached the node, as far as known, so that the next request
// names them. Naming an answer twice does no harm.
func (o *over) putBack(node index.NodeID, list []Pages) {
	if len(list) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(node, slices.Concat(list, o.pending[node]))
}

// take returns the answers that the next request to a node names.
func (o *over) take(node index.NodeID) []Pages {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.pending[node]
	n := min(len(list), maxOver)
	if n == len(list) {
		delete(o.pending, node)
	} else {
		o.pending[node] = slices.Clone(list[n:])
	}
	return list[:n:n]
}

// paging identifies the answer in pages that a scan belongs to.
type paging struct {
	Pages
	kept []index.NodeID // nodes that keep the timestamp for the next page
}

// begin sets the id of the answer in pages. An attempt at a first page gets a new one, and nodes that kept a
// timestamp for the previous attempt may release it.
func (p *paging) begin(spec *Spec, over *over) {
	if spec.Page == nil {
		return
	}
	if spec.At != nil && spec.later() {
		p.ID = spec.Page.id
		return
	}
	p.end(spec, over)
	p.ID = rand.Uint64()
}

// end makes nodes release what they keep for an answer that has no cursor.
func (p *paging) end(spec *Spec, over *over) {
	if spec.Page == nil || spec.At != nil && spec.later() {
		return
	}
	over.add(p.Pages, p.kept)
	p.kept = nil
}

// requested records the nodes that keep the timestamp.
func (p *paging) requested(nodes []*remote) {
	for _, n := range nodes {
		if !slices.Contains(p.kept, n.node) {
			p.kept = append(p.kept, n.node)
		}
	}
}

package scan

import (
	"math/rand/v2"
	"slices"
	"sync"

	"tidemark/index"
)

const (
	// maxOver is how many answers that are over a node is told of at a time.
	maxOver = 64
	// mostOver is of how many it is to be told; of those before it is not, and keeps what they have for its time.
	mostOver = 256
)

// over are answers for which nodes need not keep anything any more: in pages, as their first page was the last, and
// those that took long, as they have ended. The next question to the node tells it: where nobody asks, nobody needs the
// room.
type over struct {
	mu   sync.Mutex
	told map[index.NodeID][]Pages
}

func (o *over) add(p Pages, nodes []index.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range nodes {
		o.set(n, append(o.told[n], p))
	}
}

// set keeps the newest of what a node is to be told. The lock is held.
func (o *over) set(node index.NodeID, list []Pages) {
	if o.told == nil {
		o.told = map[index.NodeID][]Pages{}
	}
	o.told[node] = list[max(0, len(list)-mostOver):]
}

// untold takes back what a node was to be told by a question that has not come to it, as far as is known: it is told
// by the next one. Twice does no harm.
func (o *over) untold(node index.NodeID, list []Pages) {
	if len(list) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(node, slices.Concat(list, o.told[node]))
}

// take returns what a node is to be told next.
func (o *over) take(node index.NodeID) []Pages {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.told[node]
	n := min(len(list), maxOver)
	if n == len(list) {
		delete(o.told, node)
	} else {
		o.told[node] = slices.Clone(list[n:])
	}
	return list[:n:n]
}

// paging is which answer in pages a scan is of.
type paging struct {
	Pages
	kept []index.NodeID // by whom the timestamp is, for the next page
}

// begin names the answer in pages whose first page an attempt is: nodes that have kept a timestamp for the attempt
// before need not.
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

// end lets nodes keep nothing for an answer of which nobody has a cursor.
func (p *paging) end(spec *Spec, over *over) {
	if spec.Page == nil || spec.At != nil && spec.later() {
		return
	}
	over.add(p.Pages, p.kept)
	p.kept = nil
}

// asked notes which nodes keep the timestamp.
func (p *paging) asked(nodes []*remote) {
	for _, n := range nodes {
		if !slices.Contains(p.kept, n.node) {
			p.kept = append(p.kept, n.node)
		}
	}
}

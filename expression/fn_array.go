package expression

import (
	"bytes"
	"slices"
)

// elements makes a function of an array's elements and the other arguments; what is no array gives NULL.
func elements(f func(s *Scratch, list []value, rest []value) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindArray {
			return null
		}
		base, ok := s.push(a[0])
		if !ok {
			return missing
		}
		v := f(s, s.stack[base:len(s.stack):len(s.stack)], a[1:])
		s.stack = s.stack[:base]
		return v
	}
}

var arrayFunctions = []*Function{
	{Name: "ARRAY_APPEND", Family: FamilyArray, Params: "array, value, …", Min: 2, Max: MaxArgs, About: "With the values at its end.",
		Example: Example{`ARRAY_APPEND([1], 2)`, `[1,2]`}, eval: elements(func(s *Scratch, l, rest []value) value { return s.list(append(l, rest...)) })},
	{Name: "ARRAY_AVG", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The mean of its numbers; NULL if there are none.",
		Example: Example{`ARRAY_AVG([1, "a", 2])`, `1.5`}, eval: elements(func(s *Scratch, l, _ []value) value {
			sum, n, ok := s.sum(l)
			if !ok {
				return missing
			}
			if n == 0 {
				return null
			}
			return s.compute(OpDivide, sum, number{i: int64(n), f: float64(n), isInt: true})
		})},
	{Name: "ARRAY_CONCAT", Family: FamilyArray, Params: "array, array, …", Min: 2, Max: MaxArgs, About: "The arrays one after the other.",
		Example: Example{`ARRAY_CONCAT([1], [2, 3])`, `[1,2,3]`}, eval: arrayConcat},
	{Name: "ARRAY_CONTAINS", Family: FamilyArray, Params: "array, value", Min: 2, Max: 2, About: "Whether an element equals the value.",
		Example: Example{`ARRAY_CONTAINS([1, 2], 2.0)`, `true`}, eval: elements(func(s *Scratch, l, rest []value) value { return boolean(s.place(l, rest[0]) >= 0) })},
	{Name: "ARRAY_COUNT", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "How many elements are not NULL.",
		Example: Example{`ARRAY_COUNT([1, null])`, `1`}, eval: elements(func(s *Scratch, l, _ []value) value {
			n := 0
			for _, v := range l {
				if v.kind > kindNull {
					n++
				}
			}
			return s.integer(int64(n))
		})},
	{Name: "ARRAY_DISTINCT", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "Each different element once, in collation order.",
		Example: Example{`ARRAY_DISTINCT([2, 1, 2.0])`, `[1,2]`}, eval: elements(func(s *Scratch, l, _ []value) value { return s.list(s.distinct(l)) })},
	{Name: "ARRAY_FLATTEN", Family: FamilyArray, Params: "array, depth", Min: 2, Max: 2, About: "With arrays within it replaced by their elements, so many levels deep.",
		Example: Example{`ARRAY_FLATTEN([1, [2, [3]]], 1)`, `[1,2,[3]]`}, eval: arrayFlatten},
	{Name: "ARRAY_IFNULL", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The first element that is not NULL; NULL if there is none.",
		Example: Example{`ARRAY_IFNULL([null, 7])`, `7`}, eval: elements(func(_ *Scratch, l, _ []value) value {
			for _, v := range l {
				if v.kind > kindNull {
					return v
				}
			}
			return null
		})},
	{Name: "ARRAY_INTERSECT", Family: FamilyArray, Params: "array, array", Min: 2, Max: 2, About: "The different elements that both have, in collation order.",
		Example: Example{`ARRAY_INTERSECT([1, 2, 3], [3, 2])`, `[2,3]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			if rest[0].kind != kindArray {
				return null
			}
			base, ok := s.push(rest[0])
			if !ok {
				return missing
			}
			other := s.sorted(s.stack[base:])
			return s.list(slices.DeleteFunc(s.distinct(l), func(v value) bool { // both are in order
				for len(other) > 0 && s.collated(other[0], v) < 0 {
					other = other[1:]
				}
				return len(other) == 0 || s.collated(other[0], v) != 0
			}))
		})},
	{Name: "ARRAY_LENGTH", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "How many elements it has.",
		Example: Example{`ARRAY_LENGTH([1, null])`, `2`}, eval: elements(func(s *Scratch, l, _ []value) value { return s.integer(int64(len(l))) })},
	{Name: "ARRAY_MAX", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The last element in collation order; NULL if all are NULL or there are none.",
		Example: Example{`ARRAY_MAX([1, 3, 2])`, `3`}, eval: elements(func(s *Scratch, l, _ []value) value { return extreme(1)(s, l) })},
	{Name: "ARRAY_MIN", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The first element in collation order that is not NULL.",
		Example: Example{`ARRAY_MIN([null, 3, 2])`, `2`}, eval: elements(func(s *Scratch, l, _ []value) value { return extreme(-1)(s, l) })},
	{Name: "ARRAY_POSITION", Family: FamilyArray, Params: "array, value", Min: 2, Max: 2, About: "The place of the first element that equals the value, from 0; else -1.",
		Example: Example{`ARRAY_POSITION(["a", "b"], "b")`, `1`}, eval: elements(func(s *Scratch, l, rest []value) value { return s.integer(int64(s.place(l, rest[0]))) })},
	{Name: "ARRAY_PREPEND", Family: FamilyArray, Params: "value, …, array", Min: 2, Max: MaxArgs, About: "With the values before its begin.",
		Example: Example{`ARRAY_PREPEND(1, [2])`, `[1,2]`}, eval: func(s *Scratch, a []value) value {
			return elements(func(s *Scratch, l, rest []value) value { return s.list(append(slices.Clone(rest), l...)) })(s, append([]value{a[len(a)-1]}, a[:len(a)-1]...))
		}},
	{Name: "ARRAY_PUT", Family: FamilyArray, Params: "array, value", Min: 2, Max: 2, About: "With the value at its end, unless an element equals it.",
		Example: Example{`ARRAY_PUT([1], 1)`, `[1]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			if s.place(l, rest[0]) >= 0 {
				return s.list(l)
			}
			return s.list(append(l, rest[0]))
		})},
	{Name: "ARRAY_RANGE", Family: FamilyArray, Params: "from, to [, step]", Min: 2, Max: 3, About: "The integers from one up to another, which is left out.",
		Example: Example{`ARRAY_RANGE(1, 7, 3)`, `[1,4]`}, eval: arrayRange},
	{Name: "ARRAY_REMOVE", Family: FamilyArray, Params: "array, value, …", Min: 2, Max: MaxArgs, About: "Without the elements that equal one of the values.",
		Example: Example{`ARRAY_REMOVE([1, 2, 1], 1)`, `[2]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			return s.list(slices.DeleteFunc(l, func(v value) bool { return s.place(rest, v) >= 0 }))
		})},
	{Name: "ARRAY_REVERSE", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "From the last element to the first.",
		Example: Example{`ARRAY_REVERSE([1, 2])`, `[2,1]`}, eval: elements(func(s *Scratch, l, _ []value) value { slices.Reverse(l); return s.list(l) })},
	{Name: "ARRAY_SORT", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "In collation order.",
		Example: Example{`ARRAY_SORT(["a", 2, null])`, `[null,2,"a"]`}, eval: elements(func(s *Scratch, l, _ []value) value { return s.list(s.sorted(l)) })},
	{Name: "ARRAY_SUM", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The sum of its numbers; 0 if there are none.",
		Example: Example{`ARRAY_SUM([1, "a", 2])`, `3`}, eval: elements(func(s *Scratch, l, _ []value) value {
			sum, _, ok := s.sum(l)
			if !ok {
				return missing
			}
			return s.compute(OpAdd, sum, number{isInt: true})
		})},
	{Name: "ARRAY_UNION", Family: FamilyArray, Params: "array, array, …", Min: 2, Max: MaxArgs, About: "The different elements of all, in collation order.",
		Example: Example{`ARRAY_UNION([2, 1], [3, 2])`, `[1,2,3]`}, eval: func(s *Scratch, a []value) value {
			v := arrayConcat(s, a)
			if v.kind != kindArray {
				return v
			}
			return elements(func(s *Scratch, l, _ []value) value { return s.list(s.distinct(l)) })(s, []value{v})
		}},
}

// place is where a value first stands in a list, by collation: 1 equals 1.0, and NULL equals NULL.
func (s *Scratch) place(list []value, v value) int {
	if !s.spend(len(list)) {
		return -1
	}
	return slices.IndexFunc(list, func(o value) bool { return s.collated(o, v) == 0 })
}

// collated compares any values; MISSING and NULL are values too.
func (s *Scratch) collated(a, b value) int {
	if a.kind != b.kind || a.kind <= kindTrue {
		return int(a.kind) - int(b.kind)
	}
	return s.order(a, b)
}

// sorted puts values in collation order, each encoded once.
func (s *Scratch) sorted(list []value) []value {
	type keyed struct {
		key []byte
		v   value
	}
	all := make([]keyed, len(list))
	for i, v := range list {
		start := len(s.keys)
		s.spend(1 + len(v.data)/stepBytes)
		s.appendValue(v, start+maxTemp)
		all[i] = keyed{bytes.Clone(s.keys[start:]), v}
		s.keys = s.keys[:start]
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	for i, k := range all {
		list[i] = k.v
	}
	return list
}

// distinct gives each different value once, in collation order.
func (s *Scratch) distinct(list []value) []value {
	list = s.sorted(list)
	return slices.CompactFunc(list, func(a, b value) bool { return s.collated(a, b) == 0 })
}

// sum adds the numbers of a list.
func (s *Scratch) sum(list []value) (sum number, count int, ok bool) {
	sum.isInt = true
	for _, v := range list {
		if v.kind != kindNumber {
			continue
		}
		n, ok := s.numberOf(v)
		if !ok {
			return sum, 0, false
		}
		count++
		if sum.isInt && n.isInt {
			if i, fits := exact(OpAdd, sum.i, n.i); fits {
				sum = number{i: i, f: float64(i), isInt: true}
				continue
			}
		}
		sum = number{f: float64(sum.f + n.f)}
	}
	return sum, count, true
}

func arrayConcat(s *Scratch, a []value) value {
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	for _, v := range a {
		if v.kind != kindArray {
			return null
		}
		if _, ok := s.push(v); !ok {
			return missing
		}
	}
	return s.list(s.stack[base:])
}

func arrayFlatten(s *Scratch, a []value) value {
	depth, ok := s.whole(a[1])
	if !ok || a[0].kind != kindArray || depth < 0 {
		return null
	}
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	if !s.flatten(a[0], min(depth, MaxNesting)) {
		return missing
	}
	return s.list(s.stack[base:])
}

func (s *Scratch) flatten(array value, depth int64) bool {
	for w := walk(array.data); w.more(); {
		text := w.raw(']')
		if !s.look(text) {
			return false
		}
		v := s.valueOf(text)
		if v.kind == kindArray && depth > 0 {
			if !s.flatten(v, depth-1) {
				return false
			}
			continue
		}
		s.stack = append(s.stack, v)
	}
	return true
}

func arrayRange(s *Scratch, a []value) value {
	from, ok := s.whole(a[0])
	to, fine := s.whole(a[1])
	step, good := int64(1), true
	if len(a) == 3 {
		step, good = s.whole(a[2])
	}
	if !ok || !fine || !good || step == 0 {
		return null
	}
	if (float64(to)-float64(from))/float64(step) > DefaultKeys {
		s.fail(tooLarge("ARRAY_RANGE"))
		return missing
	}
	base := len(s.stack)
	for n := from; s.spend(1) && (step > 0 && n < to || step < 0 && n > to); {
		s.stack = append(s.stack, s.integer(n))
		next, fits := exact(OpAdd, n, step)
		if !fits {
			break
		}
		n = next
	}
	v := s.list(s.stack[base:])
	s.stack = s.stack[:base]
	return v
}

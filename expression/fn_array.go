package expression

import (
	"bytes"
	"math"
	"slices"
)

// elements makes a function of an array's elements and the other arguments; NULL if the first argument is not an
// array.
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
	{Name: "ARRAY_APPEND", Family: FamilyArray, Params: "array, value, …", Min: 2, Max: MaxArgs, nulls: true,
		About:   "The array with the values appended.",
		Example: Example{`ARRAY_APPEND([1], 2)`, `[1,2]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			return s.list(append(l, rest...))
		})},
	{Name: "ARRAY_AVG", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The mean of the numbers in the array; NULL if there are none.",
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
	{Name: "ARRAY_BINARY_SEARCH", Family: FamilyArray, Params: "array, value", Min: 2, Max: 2, lenient: true,
		About: "The position, from 0, of an element that equals the value, in an array that is sorted in collation " +
			"order; else -1.",
		Example: Example{`ARRAY_BINARY_SEARCH([1, 3, 5], 3)`, `1`}, eval: arrayBinarySearch},
	{Name: "ARRAY_CONCAT", Family: FamilyArray, Params: "array, array, …", Min: 2, Max: MaxArgs,
		About:   "The concatenated arrays.",
		Example: Example{`ARRAY_CONCAT([1], [2, 3])`, `[1,2,3]`}, eval: arrayConcat},
	{Name: "ARRAY_CONTAINS", Family: FamilyArray, Params: "array, value", Min: 2, Max: 2,
		About:   "Whether an element equals the value.",
		Example: Example{`ARRAY_CONTAINS([1, 2], 2.0)`, `true`}, eval: elements(func(s *Scratch, l, rest []value) value {
			return boolean(s.place(l, rest[0]) >= 0)
		})},
	{Name: "ARRAY_COUNT", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The number of elements that " +
		"are not NULL.",
		Example: Example{`ARRAY_COUNT([1, null])`, `1`}, eval: elements(func(s *Scratch, l, _ []value) value {
			n := 0
			for _, v := range l {
				if v.kind > kindNull {
					n++
				}
			}
			return s.integer(int64(n))
		})},
	{Name: "ARRAY_DISTINCT", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The distinct elements, in the order of their first occurrence.",
		Example: Example{`ARRAY_DISTINCT([2, 1, 2.0])`, `[2,1]`}, eval: elements(func(s *Scratch, l, _ []value) value {
			return s.list(s.firsts(l))
		})},
	{Name: "ARRAY_EXCEPT", Family: FamilyArray, Params: "array, array", Min: 2, Max: 2,
		About:   "The elements of the first array that are not in the second.",
		Example: Example{`ARRAY_EXCEPT([1, 2, 3], [2])`, `[1,3]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			if rest[0].kind != kindArray {
				return null
			}
			base, ok := s.push(rest[0])
			if !ok {
				return missing
			}
			other := s.sorted(s.stack[base:])
			return s.list(slices.DeleteFunc(l, func(v value) bool { return s.search(other, v) >= 0 }))
		})},
	{Name: "ARRAY_FLATTEN", Family: FamilyArray, Params: "array, depth", Min: 2, Max: 2,
		About: "The array with nested arrays replaced by their elements, down to this number of levels; all levels if " +
			"negative.",
		Example: Example{`ARRAY_FLATTEN([1, [2, [3]]], 1)`, `[1,2,[3]]`}, eval: arrayFlatten},
	{Name: "ARRAY_IFNULL", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The first element that is not NULL; NULL if there is none.",
		Example: Example{`ARRAY_IFNULL([null, 7])`, `7`}, eval: elements(func(_ *Scratch, l, _ []value) value {
			for _, v := range l {
				if v.kind > kindNull {
					return v
				}
			}
			return null
		})},
	{Name: "ARRAY_INSERT", Family: FamilyArray, Params: "array, place, value, …", Min: 3, Max: MaxArgs, nulls: true,
		About: "The array with the values inserted at a position, from 0, or from the end if negative. NULL if it is " +
			"outside the array.",
		Example: Example{`ARRAY_INSERT([1, 2], 1, 9)`, `[1,9,2]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			at, ok := s.whole(rest[0])
			if at < 0 {
				at += int64(len(l))
			}
			if !ok || at < 0 || at > int64(len(l)) {
				return null
			}
			return s.list(slices.Concat(l[:at], rest[1:], l[at:]))
		})},
	{Name: "ARRAY_INTERSECT", Family: FamilyArray, Params: "array, array, …", Min: 2, Max: MaxArgs,
		About:   "The distinct elements other than NULL that are in all arrays, in collation order.",
		Example: Example{`ARRAY_INTERSECT([1, 2, 3], [3, 2])`, `[2,3]`}, eval: arraysCounted(func(count, arrays int) bool {
			return count == arrays
		}, true)},
	{Name: "ARRAY_LENGTH", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The number of elements.",
		Example: Example{`ARRAY_LENGTH([1, null])`, `2`}, eval: elements(func(s *Scratch, l, _ []value) value {
			return s.integer(int64(len(l)))
		})},
	{Name: "ARRAY_MAX", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The last element in collation order; NULL if all are NULL or there are none.",
		Example: Example{`ARRAY_MAX([1, 3, 2])`, `3`}, eval: elements(func(s *Scratch, l, _ []value) value {
			return extreme(1)(s, l)
		})},
	{Name: "ARRAY_MIN", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The first element in collation order that is not NULL.",
		Example: Example{`ARRAY_MIN([null, 3, 2])`, `2`}, eval: elements(func(s *Scratch, l, _ []value) value {
			return extreme(-1)(s, l)
		})},
	{Name: "ARRAY_MOVE", Family: FamilyArray, Params: "array, place, place", Min: 3, Max: 3,
		About:   "The array with the element at the first position moved to the second. NULL if one is outside the array.",
		Example: Example{`ARRAY_MOVE([1, 2, 3], 0, 2)`, `[2,3,1]`}, eval: places(func(l []value, i, j int) []value {
			v := l[i]
			return slices.Insert(slices.Delete(l, i, i+1), j, v)
		})},
	{Name: "ARRAY_POSITION", Aliases: []string{"ARRAY_POS"}, Family: FamilyArray, Params: "array, value", Min: 2, Max: 2,
		About:   "The position, from 0, of the first element that equals the value; else -1.",
		Example: Example{`ARRAY_POSITION(["a", "b"], "b")`, `1`}, eval: elements(func(s *Scratch, l, rest []value) value {
			return s.integer(int64(s.place(l, rest[0])))
		})},
	{Name: "ARRAY_PREPEND", Family: FamilyArray, Params: "value, …, array", Min: 2, Max: MaxArgs, nulls: true,
		About:   "The array with the values prepended.",
		Example: Example{`ARRAY_PREPEND(1, [2])`, `[1,2]`}, eval: func(s *Scratch, a []value) value {
			return elements(func(s *Scratch, l, rest []value) value { return s.list(append(slices.Clone(rest), l...)) })(s,
				append([]value{a[len(a)-1]}, a[:len(a)-1]...))
		}},
	{Name: "ARRAY_PUT", Aliases: []string{"ARRAY_ADD"}, Family: FamilyArray, Params: "array, value, …", Min: 2,
		Max: MaxArgs, About: "The array with those of the values appended that no element equals.",
		Example: Example{`ARRAY_PUT([1], 1, 2)`, `[1,2]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			return s.list(append(l, slices.DeleteFunc(slices.Clone(rest), func(v value) bool { return s.place(l, v) >= 0 })...))
		})},
	{Name: "ARRAY_RANGE", Family: FamilyArray, Params: "from, to [, step]", Min: 2, Max: 3,
		About:   "The numbers from the first up to the second, which is excluded, a step apart (default 1).",
		Example: Example{`ARRAY_RANGE(1, 7, 3)`, `[1,4]`}, eval: arrayRange},
	{Name: "ARRAY_REMOVE", Family: FamilyArray, Params: "array, value, …", Min: 2, Max: MaxArgs,
		About:   "The array without the elements that equal one of the values.",
		Example: Example{`ARRAY_REMOVE([1, 2, 1], 1)`, `[2]`}, eval: elements(func(s *Scratch, l, rest []value) value {
			return s.list(slices.DeleteFunc(l, func(v value) bool { return s.place(rest, v) >= 0 }))
		})},
	{Name: "ARRAY_REPEAT", Family: FamilyArray, Params: "value, times", Min: 2, Max: 2, nulls: true,
		About:   "An array that contains the value this number of times.",
		Example: Example{`ARRAY_REPEAT("a", 2)`, `["a","a"]`}, eval: arrayRepeat},
	{Name: "ARRAY_REPLACE", Family: FamilyArray, Params: "array, value, value", Min: 3, Max: 3, nulls: true,
		About:   "The array with each element that equals the first value replaced by the second.",
		Example: Example{`ARRAY_REPLACE([1, 2, 1], 1, 9)`, `[9,2,9]`},
		eval: elements(func(s *Scratch, l, rest []value) value {
			if rest[0].kind == kindNull {
				return null
			}
			for i, v := range l {
				if s.equal(rest[0], v).kind == kindTrue {
					l[i] = rest[1]
				}
			}
			return s.list(l)
		})},
	{Name: "ARRAY_REVERSE", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The array in reverse order.",
		Example: Example{`ARRAY_REVERSE([1, 2])`, `[2,1]`}, eval: elements(func(s *Scratch, l, _ []value) value {
			slices.Reverse(l)
			return s.list(l)
		})},
	{Name: "ARRAY_SORT", Family: FamilyArray, Params: "array", Min: 1, Max: 1, About: "The array sorted in collation " +
		"order.",
		Example: Example{`ARRAY_SORT(["a", 2, null])`, `[null,2,"a"]`}, eval: elements(func(s *Scratch, l, _ []value) value {
			return s.list(s.sorted(l))
		})},
	{Name: "ARRAY_STAR", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About: "An object that has, for each name in the array's objects, an array of their values, with NULL for objects " +
			"that do not have it.",
		Example: Example{`ARRAY_STAR([{"a": 1}, {"a": 2, "b": 3}])`, `{"a":[1,2],"b":[null,3]}`}, eval: elements(arrayStar)},
	{Name: "ARRAY_SUM", Family: FamilyArray, Params: "array", Min: 1, Max: 1,
		About:   "The sum of the numbers in the array; 0 if there are none.",
		Example: Example{`ARRAY_SUM([1, "a", 2])`, `3`}, eval: elements(func(s *Scratch, l, _ []value) value {
			sum, _, ok := s.sum(l)
			if !ok {
				return missing
			}
			return s.compute(OpAdd, sum, number{isInt: true})
		})},
	{Name: "ARRAY_SWAP", Family: FamilyArray, Params: "array, place, place", Min: 3, Max: 3,
		About:   "The array with the elements at two positions exchanged. NULL if one is outside the array.",
		Example: Example{`ARRAY_SWAP([1, 2, 3], 0, 2)`, `[3,2,1]`}, eval: places(func(l []value, i, j int) []value {
			l[i], l[j] = l[j], l[i]
			return l
		})},
	{Name: "ARRAY_SYMDIFF", Aliases: []string{"ARRAY_SYMDIFF1"}, Family: FamilyArray, Params: "array, array, …", Min: 2,
		Max: MaxArgs, About: "The distinct elements that are in only one of the arrays, in collation order.",
		Example: Example{`ARRAY_SYMDIFF([1, 2], [2, 3])`, `[1,3]`}, eval: arraysCounted(func(count, _ int) bool {
			return count == 1
		}, false)},
	{Name: "ARRAY_SYMDIFFN", Family: FamilyArray, Params: "array, array, …", Min: 2, Max: MaxArgs,
		About:   "The distinct elements that are in an odd number of the arrays, in collation order.",
		Example: Example{`ARRAY_SYMDIFFN([1, 2], [2, 3], [2])`, `[1,2,3]`}, eval: arraysCounted(func(count, _ int) bool {
			return count%2 == 1
		}, false)},
	{Name: "ARRAY_UNION", Family: FamilyArray, Params: "array, array, …", Min: 2, Max: MaxArgs,
		About:   "The distinct elements of all arrays, in collation order.",
		Example: Example{`ARRAY_UNION([2, 1], [3, 2])`, `[1,2,3]`}, eval: func(s *Scratch, a []value) value {
			v := arrayConcat(s, a)
			if v.kind != kindArray {
				return v
			}
			return elements(func(s *Scratch, l, _ []value) value { return s.list(s.distinct(l)) })(s, []value{v})
		}},
}

// place returns the first position of a value in a list, by the operator =; -1 if there is none.
func (s *Scratch) place(list []value, v value) int {
	if !s.spend(len(list)) {
		return -1
	}
	return slices.IndexFunc(list, func(o value) bool { return s.equal(o, v).kind == kindTrue })
}

// collated compares any two values in collation order, including MISSING and NULL.
func (s *Scratch) collated(a, b value) int {
	if a.kind != b.kind || a.kind <= kindTrue {
		return int(a.kind) - int(b.kind)
	}
	return s.order(a, b)
}

// sorted sorts values in collation order; each is encoded once.
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

// distinct returns the distinct values, in collation order.
func (s *Scratch) distinct(list []value) []value {
	list = s.sorted(list)
	return slices.CompactFunc(list, func(a, b value) bool { return s.collated(a, b) == 0 })
}

// sum adds the numbers of a list and ignores other values.
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
	if !ok || a[0].kind != kindArray {
		return null
	}
	if depth < 0 {
		depth = maxDocumentDepth
	}
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	if !s.flatten(a[0], min(depth, maxDocumentDepth)) {
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

// maxDouble is the limit up to which every integer is exact as a float64.
const maxDouble = 1 << 53

func arrayRange(s *Scratch, a []value) value {
	var n [3]number
	n[2] = number{i: 1, f: 1, isInt: true}
	for i, v := range a {
		if v.kind != kindNumber {
			return null
		}
		var ok bool
		if n[i], ok = s.numberOf(v); !ok {
			return missing
		}
	}
	from, to, step := n[0].f, n[1].f, n[2].f
	if step == 0 || from == to || (from < to) != (step > 0) {
		return s.list(nil)
	}
	if math.Abs(to-from)/math.Abs(step) > DefaultKeys || math.Abs(from) > maxDouble || math.Abs(to) > maxDouble {
		s.fail(tooLarge("ARRAY_RANGE"))
		return missing
	}
	base := len(s.stack)
	for at := from; s.spend(1) && (step > 0 && at < to || step < 0 && at > to); at = float64(at + step) {
		s.stack = append(s.stack, s.float(at))
	}
	v := s.list(s.stack[base:])
	s.stack = s.stack[:base]
	return v
}

// firsts keeps the first of equal values, in their order.
func (s *Scratch) firsts(list []value) []value {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	s.spend(len(list))
	slices.SortStableFunc(order, func(i, j int) int { return s.collated(list[i], list[j]) })
	again := make([]bool, len(list))
	for i := 1; i < len(order); i++ {
		again[order[i]] = s.collated(list[order[i-1]], list[order[i]]) == 0
	}
	kept := list[:0]
	for i, v := range list {
		if !again[i] {
			kept = append(kept, v)
		}
	}
	return kept
}

// search returns the position of a value in a sorted list; -1 if it is not there.
func (s *Scratch) search(sorted []value, v value) int {
	at, found := slices.BinarySearchFunc(sorted, v, s.collated)
	s.spend(1)
	if !found {
		return -1
	}
	return at
}

// arraysCounted makes a function that returns the distinct elements of arrays, in collation order, that occur in a
// wanted number of the arrays. With known, NULL is left out.
func arraysCounted(wanted func(count, arrays int) bool, known bool) evaluation {
	return func(s *Scratch, a []value) value {
		base := len(s.stack)
		defer func() { s.stack = s.stack[:base] }()
		for _, v := range a {
			if v.kind != kindArray {
				return null
			}
		}
		for _, v := range a {
			begin, ok := s.push(v)
			if !ok {
				return missing
			}
			kept := s.distinct(s.stack[begin:])
			if known {
				kept = slices.DeleteFunc(kept, func(v value) bool { return v.kind == kindNull })
			}
			s.stack = s.stack[:begin+len(kept)]
		}
		all := s.sorted(s.stack[base:])
		result := make([]value, 0, len(all))
		for i := 0; i < len(all); {
			j := i + 1
			for j < len(all) && s.collated(all[i], all[j]) == 0 {
				j++
			}
			if wanted(j-i, len(a)) {
				result = append(result, all[i])
			}
			i = j
		}
		return s.list(result)
	}
}

// places makes a function of an array and two positions in it, counted from the end if negative.
func places(f func(l []value, i, j int) []value) evaluation {
	return elements(func(s *Scratch, l, rest []value) value {
		i, ok := s.whole(rest[0])
		j, fine := s.whole(rest[1])
		n := int64(len(l))
		if !ok || !fine || i < -n || i >= n || j < -n || j >= n {
			return null
		}
		return s.list(f(l, int((i+n)%n), int((j+n)%n)))
	})
}

func arrayRepeat(s *Scratch, a []value) value {
	n, ok := s.whole(a[1])
	if !ok || n < 0 {
		return null
	}
	if n > DefaultKeys || n*int64(len(a[0].data)+1) > maxValue {
		s.fail(tooLarge("ARRAY_REPEAT"))
		return missing
	}
	return s.list(slices.Repeat(a[:1], int(n)))
}

func arrayStar(s *Scratch, l, _ []value) value {
	columns := map[string][]value{}
	var names [][]byte
	for i, v := range l {
		if v.kind != kindObject {
			continue
		}
		list, ok := s.fields(v)
		if !ok || !s.spend(len(list)) {
			return missing
		}
		for _, f := range list {
			column := columns[string(f.name)]
			if column == nil {
				names = append(names, f.name)
				if !s.spend(len(l)) {
					return missing
				}
				column = slices.Repeat([]value{null}, len(l))
				columns[string(f.name)] = column
			}
			column[i] = s.valueOf(f.text)
		}
	}
	var members []field
	for _, name := range names {
		members = append(members, field{name, s.list(columns[string(name)]).data})
	}
	return s.build(sortFields(members))
}

// arrayBinarySearch searches correctly as far as the array is sorted; the value may be MISSING or NULL.
func arrayBinarySearch(s *Scratch, a []value) value {
	if a[0].kind != kindArray {
		return value{kind: min(a[0].kind, kindNull)}
	}
	base, ok := s.push(a[0])
	defer func() { s.stack = s.stack[:base] }()
	if !ok {
		return missing
	}
	list := s.stack[base:]
	low, high := 0, len(list)-1
	for low < high {
		if middle := low + (high-low)/2; s.collated(list[middle], a[1]) < 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if len(list) > 0 && s.collated(list[low], a[1]) == 0 {
		return s.integer(int64(low))
	}
	return s.integer(-1)
}

package expressiontest

func concat(values []any) any {
	text, result := "", any("")
	for _, v := range values {
		s, ok := v.(string)
		if v == Missing || result == Missing {
			result = Missing
		} else if !ok {
			result = nil
		}
		text += s
	}
	if result == "" {
		return text
	}
	return result
}

// like evaluates LIKE: true, false, nil or Missing.
func like(text, pattern, escape any) any {
	t, tok := text.(string)
	p, pok := pattern.(string)
	e, eok := escape.(string)
	if text == Missing || pattern == Missing || escape == Missing {
		return Missing
	}
	if !tok || !pok || !eok || len([]rune(e)) != 1 {
		return nil
	}
	return fits(t, likeParts(p, []rune(e)[0]))
}

// The special parts of a pattern.
const oneCharacter, anyText = -1, -2

func likeParts(pattern string, escape rune) (parts []rune) {
	for runes := []rune(pattern); len(runes) > 0; runes = runes[1:] {
		switch {
		case runes[0] == escape && len(runes) > 1:
			runes = runes[1:]
			parts = append(parts, runes[0])
		case runes[0] == '%':
			parts = append(parts, anyText)
		case runes[0] == '_':
			parts = append(parts, oneCharacter)
		default:
			parts = append(parts, runes[0])
		}
	}
	return parts
}

// fits uses a table: for each position in the text, the numbers of pattern parts that may be used up there.
func fits(text string, parts []rune) bool {
	used := make([]bool, len(parts)+1)
	used[0] = true
	spread := func(row []bool) {
		for i, part := range parts {
			row[i+1] = row[i+1] || row[i] && part == anyText
		}
	}
	spread(used)
	for _, c := range text {
		next := make([]bool, len(parts)+1)
		for i, part := range parts {
			next[i+1] = used[i] && (part == c || part == oneCharacter) || used[i+1] && part == anyText
		}
		spread(next)
		used = next
	}
	return used[len(parts)]
}

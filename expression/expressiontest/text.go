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

// like fits a pattern by a table: at each place of the text, which parts of the pattern may have been used up.
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
	const one, any = -1, -2 // beside characters
	var parts []rune
	for runes := []rune(p); len(runes) > 0; runes = runes[1:] {
		switch {
		case runes[0] == []rune(e)[0] && len(runes) > 1:
			runes = runes[1:]
			parts = append(parts, runes[0])
		case runes[0] == '%':
			parts = append(parts, any)
		case runes[0] == '_':
			parts = append(parts, one)
		default:
			parts = append(parts, runes[0])
		}
	}
	fits := make([]bool, len(parts)+1)
	fits[0] = true
	spread := func(row []bool) {
		for i, part := range parts {
			row[i+1] = row[i+1] || row[i] && part == any
		}
	}
	spread(fits)
	for _, c := range t {
		next := make([]bool, len(parts)+1)
		for i, part := range parts {
			if fits[i] && (part == c || part == one) {
				next[i+1] = true
			}
			if fits[i+1] && part == any {
				next[i+1] = true
			}
		}
		spread(next)
		fits = next
	}
	return fits[len(parts)]
}

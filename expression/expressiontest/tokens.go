package expressiontest

import (
	"encoding/json"
	"regexp"
	"strings"
)

// tokens computes TOKENS, with regular expressions.
func tokens(_ *interpreter, a []any) any {
	options := map[string]any{}
	if len(a) == 2 {
		var ok bool
		if options, ok = a[1].(map[string]any); !ok {
			return nil
		}
	}
	return distinct(tokenizer{options}.all(a[0]))
}

type tokenizer struct{ options map[string]any }

// all returns the tokens of a value and of its contents.
func (t tokenizer) all(v any) (list []any) {
	switch v := v.(type) {
	case string:
		return t.words(v)
	case nil, bool, json.Number:
		return []any{v}
	case []any:
		for _, e := range v {
			list = append(list, t.all(e)...)
		}
	case map[string]any:
		for name, e := range v {
			if t.options["names"] != false {
				list = append(list, t.words(name)...)
			}
			list = append(list, t.all(e)...)
		}
	}
	return list
}

func (t tokenizer) words(text string) (list []any) {
	if t.options["split"] == false {
		if t.options["trim"] != false {
			text = strings.TrimSpace(text)
		}
		if text == "" {
			return nil
		}
		return []any{t.inCase(text)}
	}
	found := regexp.MustCompile(`[\pL\pN]+`).FindAllString(text, -1)
	if t.options["specials"] == true {
		for _, field := range strings.Fields(regexp.MustCompile(`[\[\](){}]`).ReplaceAllString(text, " ")) {
			if word := regexp.MustCompile(`.*[\pL\pN]`).FindString(field); word != "" {
				found = append(found, word)
			}
		}
	}
	for _, w := range found {
		list = append(list, t.inCase(w))
	}
	return list
}

func (t tokenizer) inCase(word string) any {
	mode, _ := t.options["case"].(string)
	switch strings.ToLower(mode) {
	case "lower":
		return strings.ToLower(word)
	case "upper":
		return strings.ToUpper(word)
	}
	return word
}

package middleware

import (
	"encoding/json"
	"maps"
)

// A member is one of a header or of claims. A slice of them takes less memory than a map.
type member struct {
	name  string
	value any
}

func membersOf(object map[string]any) []member {
	members := make([]member, 0, len(object))
	for name, value := range object {
		members = append(members, member{name, value})
	}
	return members
}

// objectOf makes an object that its owner may alter, all the way down.
func objectOf(members []member) map[string]any {
	object := make(map[string]any, len(members))
	for _, m := range members {
		object[m.name] = copyJSON(m.value)
	}
	return object
}

func copyJSON(value any) any {
	switch value := value.(type) {
	case map[string]any:
		members := maps.Clone(value)
		for name, member := range members {
			members[name] = copyJSON(member)
		}
		return members
	case []any:
		array := make([]any, len(value))
		for i, element := range value {
			array[i] = copyJSON(element)
		}
		return array
	}
	return value
}

// maxGrowth is how many times its text a remembered token may take.
const maxGrowth = 16

// What things take on a 64-bit machine, with what the allocator adds.
const (
	entrySize  = 400 // a verifiedToken, its place in the cache and the cache's own tables
	smallMap   = 336 // of 8 members at most
	memberSize = 48  // of a larger map, of which at most 7/8 are in use, and 7/16 at least
	boxSize    = 16  // the smallest piece of memory that holds others in place
)

func sizeOfMembers(members []member) int {
	size := 2 * boxSize * len(members)
	for _, m := range members {
		size += sizeOfText(m.name) + sizeOf(m.value)
	}
	return size
}

func sizeOfMap(object map[string]any) int {
	size := smallMap
	if n := len(object); n > 8 {
		size += memberSize * 16 / 7 * n
	}
	for name, value := range object {
		size += sizeOfText(name) + sizeOf(value)
	}
	return size
}

// sizeOf returns about what a value takes beside the interface that it is in.
func sizeOf(value any) int {
	switch value := value.(type) {
	case string:
		return boxSize + sizeOfText(value)
	case json.Number:
		return boxSize + sizeOfText(string(value))
	case float64:
		return boxSize
	case []any:
		size := 2*boxSize + boxSize*cap(value)
		for _, element := range value {
			size += sizeOf(element)
		}
		return size
	case map[string]any:
		return sizeOfMap(value)
	}
	return 0
}

func sizeOfText(text string) int { return (len(text) + boxSize - 1) &^ (boxSize - 1) }

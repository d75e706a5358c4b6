/* Runs scan() on damaged copies of a text, each in memory of just the size that it asks for: compile it with
 * the sanitizers. Arguments: the file, a seed, how many copies. Exit status 1: a result is out of range. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scan.c"

static uint64_t state;

static uint64_t below(uint64_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return limit ? (state >> 33) % limit : 0;
}

static const char *const PIECES[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", "\\u", "\\ud83d", "\\ude00", "null", "NaN", "-", "1e", ".", "0",
    "\"args\":", "\"ts\":", "\"ph\":\"X\"", "{\"", "},{",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "\n",
    "99999999999999999999999999", "\x80", "\xff", "a\"b", "\"Collective name\":\"", "\x01", " ",
};

/* Return the first place from `at` on where the text goes on with `piece`, 0 if there is none. */
static size_t found(const uint8_t *text_, size_t size, size_t at, const char *piece)
{
    for (; at + strlen(piece) <= size; at++)
        if (!memcmp(text_ + at, piece, strlen(piece)))
            return at;
    return 0;
}

/* Copy some events of the text and damage them in up to five places; return how many bytes there are. */
static size_t damaged(const uint8_t *whole, size_t size, uint8_t *out)
{
    size_t from = found(whole, size, below(size - 8000), "{\n    \"ph\"");
    size_t length = found(whole, size, from + below(3000), "\n  },") + 4 - from;
    memcpy(out, whole + from, length);
    if (below(2))
        out[length++] = ']';
    for (uint64_t left = below(6); left; left--) {
        size_t at = below(length);
        const char *piece = PIECES[below(sizeof PIECES / sizeof *PIECES)];
        size_t more = strlen(piece), gone = below(3) ? 0 : below(length - at < 60 ? length - at : 60);
        memmove(out + at + more, out + at + gone, length - at - gone);
        memcpy(out + at, piece, more);
        length += more - gone;
    }
    return length;
}

static const struct field FIELDS[] = {
    {"ph", 2, EVENT, STRING}, {"cat", 3, EVENT, STRING}, {"name", 4, EVENT, STRING},
    {"pid", 3, EVENT, INTEGER}, {"ts", 2, EVENT, TIME}, {"dur", 3, EVENT, TIME},
    {"args", 4, EVENT, OBJECT}, {"stream", 6, ARGS, INTEGER},
    {"Collective name", 15, ARGS, STRING},
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

static int sound(const struct result *r, int64_t count, int64_t stop)
{
    for (int64_t event = 0; event < count; event++) {
        if (r->begins[event] < 0 || r->begins[event] >= r->ends[event] || r->ends[event] >= stop)
            return 0;
        for (int field = 0; field < FIELD_COUNT; field++) {
            int64_t value = r->values[field * r->events + event];
            int state = r->states[event * (FIELD_COUNT + 1) + field];
            if (state == PLAIN && (value < 0 || (FIELDS[field].kind == STRING && value >= r->found)))
                return 0;
        }
    }
    for (int64_t k = 0; k < r->found; k++)
        if (r->string_starts[k] <= 0 || r->string_starts[k] + r->string_lengths[k] >= stop)
            return 0;
    return count >= FULL;
}

static void *room(size_t bytes)
{
    void *made = malloc(bytes);
    if (!made)
        abort();
    memset(made, 0x55, bytes);
    return made;
}

/* Scan a copy of the text in memory that ends 7 bytes after its 0; return whether the result is sound. */
static int attempt(const uint8_t *text_, size_t size, int64_t *accepted)
{
    struct result r = {.events = (int64_t)below(40), .strings = (int64_t)below(60), .slots = 64};
    size_t events = (size_t)r.events;
    uint8_t *copy = room(size + 8);
    memcpy(copy, text_, size);
    memset(copy + size, 0, 8);
    r.begins = room(8 * events), r.ends = room(8 * events), r.values = room(8 * events * FIELD_COUNT);
    r.states = room(events * (FIELD_COUNT + 1));
    r.string_starts = room(8 * (size_t)r.strings), r.string_lengths = room(8 * (size_t)r.strings);
    r.table = room(4 * (size_t)r.slots);
    int64_t count = scan(copy, (int64_t)size, (int32_t)below(2), FIELDS, FIELD_COUNT, &r);
    int good = sound(&r, count, (int64_t)size);
    *accepted += count > 0;
    void *all[] = {copy, r.begins, r.ends, r.values, r.states, r.string_starts, r.string_lengths, r.table};
    for (unsigned k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
    return good;
}

int main(int count, char **arguments)
{
    static uint8_t whole[1 << 20], copy[1 << 14];
    FILE *file = count == 4 ? fopen(arguments[1], "rb") : NULL;
    if (!file)
        return 2;
    size_t size = fread(whole, 1, sizeof whole, file);
    if (size < 10000 || !found(whole, size, 0, "{\n    \"ph\"") || !found(whole, size, size - 4000, "\n  },"))
        return 2;
    int64_t accepted = 0;
    state = strtoull(arguments[2], NULL, 10);
    for (long left = atol(arguments[3]); left; left--)
        if (!attempt(copy, damaged(whole, size, copy), &accepted))
            return 1;
    printf("%lld\n", (long long)accepted);
    return 0;
}

/* One pass over a piece of a trace's list of events: which values its events have.
 *
 * scan() takes the text of whole events. For each event and each field that native.py asks for, it writes a
 * number and a state. It accepts valid JSON and the few frequent faults that salvage.py repairs (marked as
 * MENDED). It refuses a text with any other fault; the plain decoder then says what is wrong, so they never
 * differ in what they take from a text. Nothing is allocated here and nothing is kept.
 *
 * The text ends with a byte 0 and at least 7 bytes more that may be read. UTF-8 is not checked;
 * `beyond_ascii` says whether there may be any.
 */
#include "json.h"

enum { ABSENT, PLAIN, ODD, MENDED };        /* ODD is for the plain decoder; MENDED is an event's only */
enum { INTEGER, TIME, STRING, OBJECT };     /* kinds of fields */
enum { REFUSED = -1, FULL = -2 };           /* results that are no number of events */
enum { EVENT, ARGS, LEVELS };               /* where a field stands: in the event, or in its args */
enum { LONGEST_KEY = 31, MOST_FIELDS = 32, MOST_PROBES = 64 };
/* As in plain.py: what is above is damage, or an id to be wrapped. */
static const uint64_t LARGEST = ((uint64_t)1 << 61) - 1;

struct field {
    const char *name;
    int32_t length, level, kind;
};

/* What is filled in. `values` holds a column for each field, one after the other, with a number per event. */
struct result {
    int64_t events;                 /* how many there is room for */
    int64_t *begins, *ends;         /* the opening and the closing brace of each event */
    int64_t *values;                /* integers; times in ns; numbers of strings */
    uint8_t *states;                /* one row per event: those of its fields, then its own: ODD if a key has
                                     * escapes or a number is extreme, else MENDED or 0 */
    int64_t strings;                /* how many distinct ones there is room for */
    int64_t *string_starts, *string_lengths;
    int64_t slots;                  /* of `table`, where equal strings meet: a power of two > `strings` */
    int32_t *table;                 /* 0 or the number of a string, counted from 1 */
    int64_t found;                  /* how many distinct strings there are */
    int64_t list_end;               /* where the list's bracket stands, -1 if not in here */
    int64_t beyond_ascii;           /* whether there may be characters beyond ASCII */
};

struct scan {
    text start;
    const struct field *field;
    int fields;                             /* how many */
    int8_t first[LEVELS][LONGEST_KEY + 1];  /* the first field of each length of name, -1: none */
    int8_t next[MOST_FIELDS];               /* the next one of the same length */
    uint64_t beginning[MOST_FIELDS];        /* of the name: its first 8 characters */
    struct result *result;
    int64_t event;
    unsigned marks;                         /* of this event */
    int full;
};

/* Mix all bytes of a string into one word. */
static uint64_t mixed(text p, int64_t length)
{
    const uint64_t factor = 0x9E3779B97F4A7C15;
    uint64_t mix = (uint64_t)length * factor;
    for (; length >= 8; p += 8, length -= 8)
        mix = ((mix ^ word(p)) * factor) ^ (mix >> 32);
    if (length)
        mix = (mix ^ (word(p) << (64 - 8 * length))) * factor;
    mix = (mix ^ (mix >> 32)) * factor;     /* so that the last characters reach the lowest bits */
    return mix ^ (mix >> 32);
}

/* Return the number of the string: equal ones have the same. Return -1 if there is no room for one more or
 * too many unequal ones meet (someone may have made them so). */
static int64_t interned(struct scan *s, text p, int64_t length)
{
    struct result *r = s->result;
    uint64_t slot = mixed(p, length), last = slot + MOST_PROBES;
    for (; slot < last; slot++) {
        int32_t *there = &r->table[slot & (uint64_t)(r->slots - 1)];
        if (!*there) {
            if (r->found == r->strings)
                break;
            r->string_starts[r->found] = p - s->start;
            r->string_lengths[r->found] = length;
            *there = (int32_t)++r->found;
            return r->found - 1;
        }
        int64_t known = *there - 1;
        if (r->string_lengths[known] == length
            && !memcmp(s->start + r->string_starts[known], p, (size_t)length))
            return known;
    }
    s->full = 1;
    return -1;
}

static text behind_object(struct scan *s, text p, int level);

static uint8_t *states(struct scan *s)
{
    return s->result->states + s->event * (s->fields + 1);
}

static void set(struct scan *s, int field, int64_t value, int state)
{
    s->result->values[field * s->result->events + s->event] = value;
    states(s)[field] = (uint8_t)state;
}

static text take_args(struct scan *s, int field, text p)
{
    for (int other = 0; other < s->fields; other++)
        if (s->field[other].level == ARGS)      /* of two args, the last one counts */
            states(s)[other] = ABSENT;
    set(s, field, 0, PLAIN);
    return behind_object(s, p + 1, ARGS);
}

static text take_string(struct scan *s, int field, text p)
{
    text end = string_end(p + 1, &s->marks);
    int64_t value = end ? interned(s, p + 1, end - p - 1) : -1;
    if (value < 0)
        return NULL;
    set(s, field, value, PLAIN);
    return end + 1;
}

static text take_number(struct scan *s, int field, text p)
{
    struct number found;
    int is_time = s->field[field].kind == TIME;
    p = number(p, &found);
    if (!p)
        return NULL;
    int plain = found.plain && found.whole + found.decimals < 20 && found.decimals < (is_time ? 4 : 1);
    for (int decimals = found.decimals; is_time && decimals < 3; decimals++) {
        plain = plain && found.digits < UINT64_MAX / 10;
        found.digits *= 10;                     /* microseconds to ns */
    }
    plain = plain && found.digits <= LARGEST;
    s->marks |= found.extreme ? EXTREMES : 0;
    set(s, field, (int64_t)found.digits, plain ? PLAIN : ODD);
    return p;
}

/* Read the value at p into a field of the event; return what follows it, NULL if there is none. */
static text take(struct scan *s, int field, text p)
{
    int kind = s->field[field].kind, is_digit = *p >= '0' && *p <= '9';
    if (kind == OBJECT && *p == '{')
        return take_args(s, field, p);
    if (kind == STRING && *p == '"')
        return take_string(s, field, p);
    if ((kind == INTEGER || kind == TIME) && is_digit)
        return take_number(s, field, p);
    set(s, field, 0, ODD);
    return behind_value(p, 0, &s->marks);
}

static int field_called(const struct scan *s, int level, text key, int64_t length)
{
    uint64_t beginning = length < 8 ? word(key) & (((uint64_t)1 << 8 * length) - 1) : word(key);
    int field = length <= LONGEST_KEY ? s->first[level][length] : -1;
    while (field >= 0
           && (s->beginning[field] != beginning || memcmp(s->field[field].name, key, (size_t)length)))
        field = s->next[field];
    return field;
}

/* Read the object that opens before p into the fields of the event; return what follows it. */
static text behind_object(struct scan *s, text p, int level)
{
    int closed = 0;
    p = behind_space(p);
    if (*p == '}')
        return p + 1;
    while (!closed) {
        text key = p + 1;
        unsigned marks = 0;
        if (*p != '"' || !(p = string_end(key, &marks)))
            return NULL;
        int field = field_called(s, level, key, p - key);
        if (marks & ESCAPES)
            states(s)[s->fields] = ODD;
        s->marks |= marks;
        p = behind_colon(p + 1);
        if (p)
            p = field < 0 ? behind_value(p, 0, &s->marks) : take(s, field, p);
        if (!p || !(p = next_item(p, '}', &closed, &s->marks)))
            return NULL;
    }
    return p;
}

static void index_fields(struct scan *s)
{
    memset(s->first, -1, sizeof s->first);
    for (int field = 0; field < s->fields; field++) {
        int8_t *first = &s->first[s->field[field].level][s->field[field].length];
        s->next[field] = *first;
        *first = (int8_t)field;
        size_t length = (size_t)s->field[field].length;
        memcpy(&s->beginning[field], s->field[field].name, length < 8 ? length : 8);
    }
}

/* Read all events from `start` to `stop`; return their number, or why not. `more`: others may follow. */
int64_t scan(text start, int64_t stop, int32_t more, const struct field *field, int32_t fields,
             struct result *result)
{
    struct scan s = {.start = start, .field = field, .fields = fields, .result = result};
    if (fields > MOST_FIELDS)
        return REFUSED;
    index_fields(&s);
    memset(result->table, 0, (size_t)result->slots * sizeof *result->table);
    result->found = 0;
    result->list_end = -1;
    result->beyond_ascii = 0;
    for (text p = behind_space(start); *p == '{'; p = behind_space(p + 1)) {
        if (s.event == result->events)
            return FULL;
        s.marks = 0;
        memset(states(&s), ABSENT, (size_t)fields + 1);
        result->begins[s.event] = p - start;
        p = behind_object(&s, p + 1, EVENT);
        if (!p)
            return s.full ? FULL : REFUSED;
        if (s.marks & EXTREMES)
            states(&s)[fields] = ODD;
        if ((s.marks & FAULTS) && states(&s)[fields] != ODD)
            states(&s)[fields] = MENDED;
        if (s.marks & BEYOND_ASCII)
            result->beyond_ascii = 1;
        result->ends[s.event++] = p - 1 - start;
        p = behind_space(p);
        if (*p == ']')
            result->list_end = p - start;
        if (*p == ']' || (more && p == start + stop))
            return s.event;
        if (*p != ',')
            return REFUSED;
    }
    return REFUSED;
}

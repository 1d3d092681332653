// The input of the compiler that README.md traces. It includes nothing and stays as it is: figures
// of traces can be compared only if the same program does the same work.

typedef unsigned long Word;
typedef unsigned long Size;

enum { SLOTS = 1 << 12, NAMES = 64, DEPTH = 128, TEXT = 1 << 16, STATES = 32, SIDE = 48 };

typedef enum { NUMBER, NAME, ADD, SUBTRACT, MULTIPLY, DIVIDE, OPEN, CLOSE, ASSIGN, END, WRONG } Kind;

typedef struct Node {
    struct Node *left, *right, *next;
    Kind kind;
    Word value;
} Node;

typedef struct {
    const char *at;
    Kind kind;
    Word value;
    int depth;
} Parser;

static Node pool[SLOTS], *table[SLOTS / 4];
static Size used;
static Word names[NAMES], random_state = 1;
static char text[TEXT];
static double left_matrix[SIDE][SIDE], right_matrix[SIDE][SIDE], product[SIDE][SIDE];

static Word next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static Word hash(Kind kind, Word value, const Node *left, const Node *right) {
    Word sum = 14695981039346656037ul;
    const Word parts[] = {kind, value, (Word)left, (Word)right};
    for (Size i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int shift = 0; shift < 64; shift += 8)
            sum = (sum ^ (parts[i] >> shift & 255)) * 1099511628211ul;
    return sum;
}

// Returns the node with these parts: the one that exists, or a new one; 0 if the pool is full.
static Node *node(Kind kind, Word value, Node *left, Node *right) {
    Node **bucket = &table[hash(kind, value, left, right) % (SLOTS / 4)];
    for (Node *other = *bucket; other; other = other->next)
        if (other->kind == kind && other->value == value && other->left == left && other->right == right)
            return other;
    if (used == SLOTS)
        return 0;
    Node *made = &pool[used++];
    *made = (Node){left, right, *bucket, kind, value};
    return *bucket = made;
}

static void advance(Parser *parser) {
    while (*parser->at == ' ' || *parser->at == '\n' || *parser->at == '\t')
        parser->at++;
    char c = *parser->at;
    parser->kind = WRONG;
    if (c >= '0' && c <= '9') {
        parser->kind = NUMBER;
        for (parser->value = 0; *parser->at >= '0' && *parser->at <= '9'; parser->at++)
            parser->value = parser->value * 10 + (Word)(*parser->at - '0');
        return;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') {
        parser->kind = NAME;
        for (parser->value = 0; *parser->at >= 'A' && *parser->at <= 'z'; parser->at++)
            parser->value = parser->value * 31 + (Word)*parser->at;
        parser->value %= NAMES;
        return;
    }
    switch (c) {
    case '+': parser->kind = ADD; break;
    case '-': parser->kind = SUBTRACT; break;
    case '*': parser->kind = MULTIPLY; break;
    case '/': parser->kind = DIVIDE; break;
    case '(': parser->kind = OPEN; break;
    case ')': parser->kind = CLOSE; break;
    case '=': parser->kind = ASSIGN; break;
    case 0: parser->kind = END; return;
    }
    parser->at++;
}

static Node *sum(Parser *parser);

static Node *atom(Parser *parser) {
    Kind kind = parser->kind;
    Word value = parser->value;
    if (kind == NUMBER || kind == NAME) {
        advance(parser);
        return node(kind, value, 0, 0);
    }
    if (kind == SUBTRACT) {
        advance(parser);
        return node(SUBTRACT, 0, node(NUMBER, 0, 0, 0), atom(parser));
    }
    if (kind != OPEN || ++parser->depth > DEPTH)
        return 0;
    advance(parser);
    Node *inner = sum(parser);
    parser->depth--;
    if (parser->kind != CLOSE)
        return 0;
    advance(parser);
    return inner;
}

static Node *term(Parser *parser) {
    Node *left = atom(parser);
    while (left && (parser->kind == MULTIPLY || parser->kind == DIVIDE)) {
        Kind kind = parser->kind;
        advance(parser);
        Node *right = atom(parser);
        left = right ? node(kind, 0, left, right) : 0;
    }
    return left;
}

static Node *sum(Parser *parser) {
    Node *left = term(parser);
    while (left && (parser->kind == ADD || parser->kind == SUBTRACT)) {
        Kind kind = parser->kind;
        advance(parser);
        Node *right = term(parser);
        left = right ? node(kind, 0, left, right) : 0;
    }
    return left;
}

static Node *fold(Node *tree) {
    if (!tree || tree->kind == NUMBER || tree->kind == NAME)
        return tree;
    Node *left = fold(tree->left), *right = fold(tree->right);
    if (!left || !right)
        return 0;
    if (left->kind == NUMBER && right->kind == NUMBER)
        switch (tree->kind) {
        case ADD: return node(NUMBER, left->value + right->value, 0, 0);
        case SUBTRACT: return node(NUMBER, left->value - right->value, 0, 0);
        case MULTIPLY: return node(NUMBER, left->value * right->value, 0, 0);
        case DIVIDE: return right->value ? node(NUMBER, left->value / right->value, 0, 0) : 0;
        default: return 0;
        }
    if (tree->kind == MULTIPLY && right->kind == NUMBER && right->value == 1)
        return left;
    if (tree->kind == ADD && left->kind == NUMBER && left->value == 0)
        return right;
    return node(tree->kind, 0, left, right);
}

static Word evaluate(const Node *tree) {
    Word left, right;
    if (!tree)
        return 0;
    if (tree->kind == NUMBER)
        return tree->value;
    if (tree->kind == NAME)
        return names[tree->value];
    left = evaluate(tree->left);
    right = evaluate(tree->right);
    switch (tree->kind) {
    case ADD: return left + right;
    case SUBTRACT: return left - right;
    case MULTIPLY: return left * right;
    case DIVIDE: return right ? left / right : 0;
    default: return 0;
    }
}

static Size print(Word value, char *to) {
    char digits[24];
    Size count = 0, length;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    length = count;
    while (count)
        *to++ = digits[--count];
    return length;
}

static Size write_expression(char *to, int depth) {
    Size length = 0;
    if (depth == 0 || next_random() % 4 == 0) {
        if (next_random() % 2)
            return print(next_random() % 1000, to);
        *to = (char)('a' + next_random() % 26);
        return 1;
    }
    to[length++] = '(';
    length += write_expression(to + length, depth - 1);
    to[length++] = "+-*/"[next_random() % 4];
    length += write_expression(to + length, depth - 1);
    to[length++] = ')';
    return length;
}

static void sort(Word *items, Size count) {
    if (count < 16) {
        for (Size i = 1; i < count; i++) {
            Word item = items[i];
            Size at = i;
            for (; at && items[at - 1] > item; at--)
                items[at] = items[at - 1];
            items[at] = item;
        }
        return;
    }
    Word pivot = items[count / 2];
    Size low = 0, high = count - 1;
    for (;;) {
        while (items[low] < pivot)
            low++;
        while (items[high] > pivot)
            high--;
        if (low >= high)
            break;
        Word other = items[low];
        items[low++] = items[high];
        items[high--] = other;
    }
    sort(items, low);
    sort(items + low, count - low);
}

static unsigned crc(const unsigned char *from, Size length) {
    static unsigned bytes[256];
    if (!bytes[1])
        for (unsigned i = 0; i < 256; i++) {
            unsigned sum = i;
            for (int bit = 0; bit < 8; bit++)
                sum = sum & 1 ? sum >> 1 ^ 0xedb88320 : sum >> 1;
            bytes[i] = sum;
        }
    unsigned sum = ~0u;
    while (length--)
        sum = bytes[(sum ^ *from++) & 255] ^ sum >> 8;
    return ~sum;
}

// Returns whether a pattern with `*` and `?` matches all of a string.
static int matches(const char *pattern, const char *string) {
    _Bool now[STATES] = {1}, after[STATES];
    Size length = 0;
    while (pattern[length])
        length++;
    if (length >= STATES)
        return 0;
    for (Size at = 0; at < length && pattern[at] == '*'; at++)
        now[at + 1] = 1;
    for (; *string; string++) {
        for (Size at = 0; at <= length; at++)
            after[at] = at < length && pattern[at] == '*' && now[at];
        for (Size at = 0; at < length; at++)
            if (now[at] && (pattern[at] == '?' || pattern[at] == *string))
                after[at + 1] = 1;
        for (Size at = 0; at < length; at++)
            if (after[at] && pattern[at] == '*')
                after[at + 1] = 1;
        for (Size at = 0; at <= length; at++)
            now[at] = after[at];
    }
    return now[length];
}

static double multiply(void) {
    double trace = 0;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            left_matrix[i][j] = (double)(next_random() % 100) / 10;
            right_matrix[j][i] = (double)(next_random() % 100) / 10;
        }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            double value = 0;
            for (int k = 0; k < SIDE; k++)
                value += left_matrix[i][k] * right_matrix[k][j];
            product[i][j] = value;
        }
    for (int i = 0; i < SIDE; i++)
        trace += product[i][i];
    return trace;
}

int main(void) {
    static Word results[256];
    for (Size i = 0; i < NAMES; i++)
        names[i] = next_random() % 100;
    for (Size i = 0; i < sizeof results / sizeof *results; i++) {
        text[write_expression(text, 9)] = 0;
        Parser parser = {.at = text};
        used = 0;
        for (Size slot = 0; slot < SLOTS / 4; slot++)
            table[slot] = 0;
        advance(&parser);
        results[i] = evaluate(fold(sum(&parser)));
    }
    sort(results, sizeof results / sizeof *results);
    unsigned check = crc((const unsigned char *)results, sizeof results);
    return (int)((check ^ (unsigned)multiply() ^ (unsigned)matches("*a?(*)", text)) & 1);
}

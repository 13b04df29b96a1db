# Prints what was measured as a table: median, smallest and largest of the rounds, and the ratio to the first line, round
# by round. Input: line, round, value, separated by tabs. Variables: title (of the first column), unit.
# With -v only=LABEL and -v base=LABEL it prints nothing but the median of the ratios between these two.

function median(values, count,    i, j, kept) {
    for (i = 2; i <= count; i++) {
        kept = values[i]
        for (j = i - 1; j >= 1 && values[j] > kept; j--) values[j + 1] = values[j]
        values[j + 1] = kept
    }
    smallest = values[1]
    largest = values[count]
    return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
}

function ratios_of(label, base,    round, count) {
    count = 0
    split("", values)
    for (round = 1; round <= rounds; round++)
        if (value[base, round] > 0 && (label, round) in value) values[++count] = value[label, round] / value[base, round]
    return count ? median(values, count) : 0
}

function show(number) {
    return number >= 100 ? sprintf("%.0f", number) : number >= 10 ? sprintf("%.1f", number) : sprintf("%.2f", number)
}

BEGIN { FS = "\t" }

!($1 in known) { known[$1]; labels[++lines] = $1 }
{ value[$1, $2] = $3; if ($2 > rounds) rounds = $2 }

END {
    if (only != "") {
        printf "%.4f\n", ratios_of(only, base)
        exit
    }
    width = length(title)
    for (i = 1; i <= lines; i++) if (length(labels[i]) > width) width = length(labels[i])
    dashes = sprintf("%" width "s", "")
    gsub(/ /, "-", dashes)
    printf "| %-" width "s | %12s | %19s | %6s | %13s |\n", title, unit, "smallest..largest", "ratio", "its spread"
    printf "|-%s-|-------------:|--------------------:|-------:|--------------:|\n", dashes
    for (i = 1; i <= lines; i++) {
        count = 0
        split("", values)
        for (round = 1; round <= rounds; round++) if ((labels[i], round) in value) values[++count] = value[labels[i], round]
        middle = show(median(values, count))
        range = show(smallest) ".." show(largest)
        ratio = ratios_of(labels[i], labels[1])
        printf "| %-" width "s | %12s | %19s | %6.2f | %13s |\n", labels[i], middle, range, ratio, i == 1 ? "" : sprintf("%.2f..%.2f", smallest, largest)
    }
}

# Looks into the Git repositories of the directory it runs in, and of those directly below it, and strips them where $STRIP
# is set: of what HEAD does not reach. Prints a line for each repository with such commits: how many there are, how many of
# them something names, how many names there are, the first of them, and the directory. A first line ends with "..." while
# it is not known how many nothing names.

shopt -s nullglob dotglob
export LC_ALL=C GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0

fail() {
    echo "$1: $2" >&2
    exit 1
}

repository() { git -c safe.directory='*' "$@"; }

# Commits that something names: a ref, a reflog, or a file such as ORIG_HEAD.
named() { repository rev-list --count "$@" ${head:+--not "$head"}; }

# The commits in files such as ORIG_HEAD.
heads() {
    grep -ohE '^[0-9a-f]{40,64}' /dev/null "$@" | repository cat-file --batch-check='%(objecttype) %(objectname)' | sed -n 's/^commit //p'
}

names() {
    repository for-each-ref --format='%(refname)' ${head:+--no-merged "$head"}
    [ "$(repository rev-list --count --reflog --not --all)" = 0 ] || echo reflogs
    local file commits
    for file in "$git"/*_HEAD; do
        commits=$(heads "$file")
        [ -z "$commits" ] || [ "$(named $commits)" = 0 ] || echo "${file##*/}"
    done
}

stored() {
    repository cat-file --batch-all-objects --unordered --batch-check='%(objecttype) %(objectname)' |
        sed -n 's/^commit //p' | sort
}

look() {
    local by_name by_all names
    by_name=$(named --all --reflog $(heads "$git"/*_HEAD)) || return
    names=$( [ "$by_name" = 0 ] || names)
    names="$([ -z "$names" ] || wc -l <<< "$names") $(head -n 4 <<< "$names" | cut -c1-100 | tr '\n' ' ')"
    [ "$by_name" = 0 ] || printf '%s\t%s\t%s\t%s\n' ... "$by_name" "$names" "$directory"
    by_all=$(comm -13 <([ -z "$head" ] || repository rev-list "$head" | sort) <(stored) | wc -l)
    [ "$by_all" = 0 ] || printf '%s\t%s\t%s\t%s\n' "$by_all" "$by_name" "$names" "$directory"
}

# Each step takes away what keeps objects alive; the last two take away the objects.
strip() {
    repository worktree prune --expire=now
    comm -23 <(repository for-each-ref --format='%(refname)' | sort) \
        <([ -z "$head" ] || repository for-each-ref --format='%(refname)' --merged "$head" | sort) |
        sed 's/^/delete /' | repository update-ref --no-deref --stdin &&
        repository reflog expire --expire=all --all &&
        rm -rf "$git"/{logs,lost-found,rebase-merge,rebase-apply,sequencer} "$git"/*_HEAD \
            "$git"/{COMMIT_EDITMSG,MERGE_MSG,MERGE_MODE,SQUASH_MSG,AUTO_MERGE} \
            "$git"/objects/info/commit-graph{,s} "$git"/objects/pack/*.keep &&
        repository repack -a -d -q &&
        repository prune --expire=now
}

# What is reached is in one pack then. Where there is more, it is looked at one by one.
check() {
    local sizes left
    sizes=$(repository count-objects -v | grep -E '^(count|packs|garbage): ' | tr '\n' ' ')
    left=$(look | tail -n 1 | cut -f 1)
    [ -z "$left" ] || fail "$directory" "$left commits are still there that HEAD does not reach (is it a partial clone, or has it other work trees?)"
    case $sizes in
        'count: 0 packs: '[01]' garbage: 0 ') return ;;
    esac
    left=$(repository fsck --unreachable --no-dangling --no-reflogs --connectivity-only --no-progress 2> /dev/null | grep -c '^unreachable')
    [ "$left" = 0 ] || fail "$directory" "$left objects are still there that HEAD does not reach (is it a partial clone?)"
}

found=()
for directory in . */; do
    directory=${directory%/}
    [ ! -L "$directory" ] && [ -e "$directory/.git" ] && found+=("$directory")
done
if [ "${#found[@]}" = 0 ]; then
    [ -z "$STRIP" ] || fail "$PWD" 'there is no Git repository, nor directly below it'
    exit 0
fi
if ! command -v git > /dev/null; then
    [ -z "$STRIP" ] || fail "$PWD" 'there is no git in the sandbox'
    exit 0
fi
for directory in "${found[@]}"; do
    export GIT_DIR=$directory/.git
    # A .git that is no repository holds nothing that git could show.
    git=$(repository rev-parse --absolute-git-dir) || { [ -z "$STRIP" ] || exit 1; continue; }
    head=$(repository rev-parse -q --verify 'HEAD^{commit}')
    if [ -z "$STRIP" ]; then
        look
        continue
    fi
    common=$(cd "$(repository rev-parse --git-common-dir)" && pwd -P)
    [ "$common" = "$(cd "$git" && pwd -P)" ] || fail "$directory" "it is a work tree of $common: make it a clone"
    [ ! -s "$git/objects/info/alternates" ] || fail "$directory" 'it borrows objects of another repository: make it a whole clone (git repack -a -d, and remove .git/objects/info/alternates)'
    strip || fail "$directory" 'git could not remove what HEAD does not reach'
    # Root may have made files in a repository that is not its own.
    [ "$(id -u)" != 0 ] || chown -R --reference="$git" "$git" || fail "$directory" 'its files could not be given to their owner'
    check
done

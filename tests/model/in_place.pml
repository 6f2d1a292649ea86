/* The copies of one sidecar, of which some are only what changes from another one, as a SPIN model: staged, decided, completed
 * in place or beside, rolled back, released, lost, while two replicas load them and a reader holds one. README.md says what it
 * leaves to update_protocol.pml: coordinators, pauses and ranks.
 *
 * Each fault takes one from NF: a replica is killed, the sidecar is killed (its copies are gone, its record stays), a word of a
 * base has changed by itself, a decision cannot be stored.
 *
 * Bounds: NF MAXV (versions) NARENA NHELD (versions that are kept) NROLL (rollbacks).  Planted: BUG_*.  WITNESS_*: must be reached.
 */
#ifndef NF
#define NF 1
#endif
#ifndef MAXV          /* at most 4 */
#define MAXV 3
#endif
#ifndef NARENA        /* at most 3 */
#define NARENA 2
#endif
#ifndef NHELD
#define NHELD 2
#endif
#ifndef NROLL
#define NROLL 1
#endif
#define TORN 9
#define NONE 9

/* the copy of a version, as in the transition table of HeldVersions */
#define ABSENT 0
#define HELD 1
#define CHANGES 2
#define COMPLETING 3
#define LENT 4

byte faults = NF, rolls = NROLL;
/* copies */
byte st[5];
byte base[5];                   /* of a copy without bytes */
byte leads[5];                  /* what these changes make of the base */
byte at[5] = NONE;              /* the arena of a copy with bytes */
byte mem[NARENA], own[NARENA];       /* what is in an arena; the version that has it, 0: none */
byte rd[NARENA];                     /* who has a read lease of it */
byte next = 1, staged;               /* the next version; one that is staged and not decided */
byte target, prev, deciding;         /* deciding: its decision is being stored */
bool canary, kind;                   /* replica 0 alone follows the target; the kind of `deciding` */
bool withdrawn[5];
byte comp, compa;                    /* the version that is being made complete, and where */
bool inplace;
/* replicas: what is in their memory, what they serve, and a load: 1 from an arena, 2 by a patch */
byte eng[2], ver[2], ld[2], lv[2], la[2];
byte rv, ra;                         /* what the reader has open */
bool back;                           /* a rollback was completed in place */
byte i, n, b, a;

#define want(r) ((canary && r==1) -> prev : target)
#define serves(r) (ver[r]==want(r) && ld[r]==0)
/* versions that are held in any form */
#define held(v) (st[v]!=ABSENT)
#define is_target(v) (v==target || v==deciding || v==staged || (canary && v==prev))
/* whether something that is needed leads from v */
#define root_of(v, w) (held(w) && st[w]!=HELD && st[w]!=LENT && (base[w]==v || (held(base[w]) && st[base[w]]==CHANGES && base[base[w]]==v)))
#ifdef BUG_DROP_ROOT
#define needed(v) (is_target(v) || v==comp)
#else
#define needed(v) (is_target(v) || v==comp || (comp!=0 && base[comp]==v) || (target!=0 && root_of(v, target)) || (deciding!=0 && root_of(v, deciding)) || (staged!=0 && root_of(v, staged)) || (canary && root_of(v, prev)))
#endif
#define free(x) (own[x]==0 && rd[x]==0)
#define take_free(x) x = 0; do :: x<NARENA && !free(x) -> x++ :: else -> break od
#define has_free (free(0) || free(NARENA-1) || free(NARENA/2))

/* what leads from it goes with it; chains have at most two links */
inline release(v) {
  i = 1;
  do
  :: i<=MAXV && held(i) && (st[i]==CHANGES) && (base[i]==v || (st[base[i]]==CHANGES && base[base[i]]==v)) && base[i]!=0 ->
#ifndef BUG_DROP_ROOT
       st[i] = ABSENT; base[i] = 0;
#endif
       i++
  :: i<=MAXV && !(held(i) && (st[i]==CHANGES) && (base[i]==v || (st[base[i]]==CHANGES && base[base[i]]==v)) && base[i]!=0) -> i++
  :: i>MAXV -> break
  od;
  i = 0;
  if :: at[v]!=NONE -> own[at[v]] = 0; at[v] = NONE :: else fi;
  st[v] = ABSENT; base[v] = 0
}

inline arrive(v) { take_free(a); assert(a<NARENA); mem[a] = v; own[a] = v; at[v] = a; st[v] = HELD; a = 0 }

#define count_held (held(1) + held(2) + held(3) + held(4))

active proctype Sidecar() {
end:
  do
  /* a version comes, in full, or as what changes from the target */
  :: d_step { next<=MAXV && staged==0 && deciding==0 && !canary && comp==0 && count_held<=NHELD && target!=0 && st[target]==HELD ->
       staged = next; next++; st[staged] = CHANGES; base[staged] = target; leads[staged] = staged }
  :: d_step { next<=MAXV && staged==0 && deciding==0 && !canary && comp==0 && count_held<=NHELD && has_free ->
       staged = next; next++; arrive(staged) }
  /* given up before its decision */
  :: d_step { staged!=0 && deciding==0 && next<=MAXV -> n = staged; staged = 0; release(n); n = 0 }
  /* the decision, and when it is stored */
  :: d_step { staged!=0 && deciding==0 ->
       deciding = staged }
#ifndef NO_CANARY
  :: d_step { staged!=0 && deciding==0 && target!=0 -> deciding = staged; kind = 1 }
#endif
  :: d_step { deciding!=0 ->
       prev = target; target = deciding; canary = kind; kind = 0; deciding = 0; staged = 0 }
  :: d_step { deciding!=0 && faults>0 -> faults--; deciding = 0; kind = 0 }
  :: d_step { canary && deciding==0 && serves(0) -> canary = 0 }
  /* a rollback to what is held of the version before */
  :: d_step { rolls>0 && target>1 && prev!=0 && prev<target && held(prev) && !withdrawn[prev] && deciding==0 ->
       rolls--; if :: staged!=0 -> n = staged; staged = 0; release(n); n = 0 :: else fi;
       withdrawn[target] = 1; target = prev; prev = 0; canary = 0 }
  /* the target, or what it leads from, is made complete */
#ifdef BUG_CHANGE_EARLY  /* when it is staged */
#define GOAL (staged!=0 -> staged : target)
#else
#define GOAL target
#endif
#define IS_CHANGES(v) (v!=0 && st[v]==CHANGES && (st[base[v]]==HELD || (st[base[v]]==CHANGES && st[base[base[v]]]==HELD)))
#define NEXT (st[base[GOAL]]==CHANGES -> base[GOAL] : GOAL)
#define ROOT base[NEXT]
#ifdef BUG_CANARY_IN_PLACE
#define MAY_IN_PLACE (ROOT!=target && rd[at[ROOT]]==0)
#else
#ifdef BUG_NO_LOCK       /* nobody asks the kernel who reads it */
#define MAY_IN_PLACE (!canary && ROOT!=target)
#else
#ifdef BUG_CHANGE_EARLY
#define MAY_IN_PLACE (!canary && rd[at[ROOT]]==0)
#else
#define MAY_IN_PLACE (!canary && ROOT!=target && rd[at[ROOT]]==0)
#endif
#endif
#endif
  :: d_step { comp==0 && deciding==0 && IS_CHANGES(GOAL) && MAY_IN_PLACE ->
       n = NEXT; b = base[n];
       assert(mem[at[b]]==b);                              /* found: what changes fits its base */
       assert(b!=target && b!=deciding && !(canary && b==prev));   /* decided: never what is to be served */
       comp = n; inplace = 1; compa = at[b]; st[n] = COMPLETING; st[b] = LENT; mem[compa] = TORN; n = 0; b = 0 }
  :: d_step { comp==0 && deciding==0 && IS_CHANGES(target) && (canary || rd[at[base[(st[base[target]]==CHANGES -> base[target] : target)]]]!=0) && has_free ->
       n = (st[base[target]]==CHANGES -> base[target] : target);
       take_free(compa); comp = n; inplace = 0; own[compa] = n; st[n] = COMPLETING; mem[compa] = TORN; n = 0 }
  :: d_step { comp!=0 ->
       mem[compa] = leads[comp]; st[comp] = HELD; b = base[comp]; base[comp] = 0;
       if
       :: inplace ->
            st[b] = CHANGES; base[b] = comp; at[b] = NONE;
            leads[b] = b;
#ifdef BUG_BACK_SAME     /* what leads there is kept, in place of what leads back */
            leads[b] = comp;
#endif
            back = back | (comp<b)
       :: else
       fi;
       own[compa] = comp; at[comp] = compa; comp = 0; compa = 0; inplace = 0; b = 0;
#ifdef WITNESS_BACK
       assert(!back)
#endif
     }
  /* a word of the base was not that of what changes: in place neither copy is left */
  :: d_step { comp!=0 && faults>0 -> faults--; n = comp; b = base[comp];
       if
       :: inplace -> comp = 0; at[n] = NONE; st[n] = CHANGES; st[b] = HELD; release(b);
#ifdef BUG_LOST_IS_HELD  /* the base is taken for what it was */
            own[compa] = b; at[b] = compa; st[b] = HELD
#endif
       :: else -> comp = 0; own[compa] = 0; st[n] = CHANGES; release(n)
       fi;
       compa = 0; inplace = 0; n = 0; b = 0 }
  /* a target that is not here is fetched in full, the version before for a canary as well */
  :: d_step { target!=0 && st[target]==ABSENT && has_free && comp==0 -> arrive(target) }
  :: d_step { canary && st[prev]==ABSENT && has_free && comp==0 -> arrive(prev) }
  /* copies that need not be kept */
#define spare(v) (held(v) && !needed(v))
#define spare_arena(v) (spare(v) && at[v]!=NONE)
#define any(P) (P(1) || P(2) || P(3) || P(4))
#define first(P) (P(1) -> 1 : (P(2) -> 2 : (P(3) -> 3 : 4)))
#define lacks_arena (!has_free && target!=0 && (st[target]==ABSENT || (canary && (st[prev]==ABSENT || st[target]==CHANGES))))
  :: d_step { comp==0 && count_held>NHELD && any(spare) -> n = first(spare); release(n); n = 0 }
  :: d_step { comp==0 && lacks_arena && any(spare_arena) -> n = first(spare_arena); release(n); n = 0 }
  /* killed: its arenas are gone, and what had mapped them keeps what it had */
  :: d_step { faults>0 && target!=0 && rd[0]==0 && rd[NARENA-1]==0 && rd[NARENA/2]==0 -> faults--;
       i = 1; do :: i<=MAXV -> st[i] = ABSENT; base[i] = 0; at[i] = NONE; i++ :: else -> break od; i = 0;
       do :: i<NARENA -> own[i] = 0; mem[i] = 0; i++ :: else -> break od; i = 0;
       comp = 0; compa = 0; inplace = 0; staged = 0; deciding = 0; kind = 0 }
  od
}

#ifdef BUG_LOAD_LENT     /* the memory of a copy that is being changed is read */
#define loadable(v) (v!=0 && (st[v]==HELD || st[v]==LENT) && at[v]!=NONE)
#else
#define loadable(v) (v!=0 && st[v]==HELD)
#endif

proctype Replica(byte r) {
end:
  do
  :: d_step { ld[r]==0 && ver[r]!=want(r) && loadable(want(r)) ->
       lv[r] = want(r); ld[r] = 1; la[r] = at[lv[r]]; rd[la[r]]++; ver[r] = 0 }
  :: d_step { ld[r]==0 && ver[r]!=want(r) && loadable(want(r)) && ver[r]!=0 && eng[r]==ver[r] ->
       lv[r] = want(r); ld[r] = 2; ver[r] = 0 }
  /* all bytes, as they are in the arena now, or what differs */
  :: d_step { ld[r]==1 -> assert(mem[la[r]]==lv[r]); eng[r] = lv[r]; ver[r] = lv[r]; rd[la[r]]--; ld[r] = 0; la[r] = 0; lv[r] = 0 }
  :: d_step { ld[r]==2 -> eng[r] = lv[r]; ver[r] = lv[r]; ld[r] = 0; lv[r] = 0 }
  :: d_step { faults>0 && (eng[r]!=0 || ld[r]!=0) -> faults--;
       if :: ld[r]==1 -> rd[la[r]]-- :: else fi; ld[r] = 0; la[r] = 0; lv[r] = 0; eng[r] = 0; ver[r] = 0 }
  od
}

/* An engine that adopts, or a process that reads a version: it keeps its lease as long as it likes. */
active proctype Reader() {
end:
  do
  :: d_step { rv==0 && target!=0 && loadable(target) -> rv = target; ra = at[target]; rd[ra]++ }
  :: d_step { rv!=0 -> assert(mem[ra]==rv); rd[ra]--; rv = 0; ra = 0 }
  od
}

/* At rest: the target is complete, and each replica serves what it should. The reader can always end. */
active proctype Monitor() {
  atomic { timeout ->
    assert(comp==0 && deciding==0);
    assert(target==0 || (st[target]==HELD && mem[at[target]]==target));
    assert(target==0 || (serves(0) && serves(1))) }
}

init { atomic { run Replica(0); run Replica(1) } }

/* The arena of a trainer that is changed in place while sidecars of its host map it, as a SPIN model: two versions that the fleet
 * goes to and back, two sidecars that lend the arena after their decision, readers, and the kernel's locks. README.md says what it
 * leaves to the other models.
 *
 * Each fault takes one from NF: the trainer is killed, or is suspended while it writes, a sidecar is killed, a sidecar hangs for ever.
 *
 * Bounds: NF TURNS (decisions; each other one is a rollback).  Planted: BUG_*.  WITNESS_*: must be reached.
 */
#ifndef NF
#define NF 1
#endif
#ifndef TURNS
#define TURNS 2
#endif
#define TORN 3
#define NONE 9

byte faults = NF, turns = TURNS;
/* arenas: what is in them, and the kernel's locks */
byte mem[2], rd[2], wl = NONE;
/* the trainer: what is decided, where versions are offered, and a change: 1 it waits for readers, 2 it writes */
bool alive = 1, stuck;
#define serves (alive && !stuck)
byte goal = 1, at, changing;
byte off[3] = NONE;
/* sidecars: the stored target; the version that is complete, and its arena, NONE: an own one; the arena that is lent */
byte tgt[2] = 1, mv[2], ma[2] = NONE, lent[2] = NONE, own[2];
bool hangs[2], fresh[2];        /* fresh: killed, and nothing was fetched since */
/* a reader of each sidecar: 1 in its process, under the lease of the sidecar, 2 an engine with a lease of its own */
byte lr[2], la[2], lv[2];
bool torn_used, beside, back, given_up, all_whole = 1;
byte i;

#define other(v) (3 - v)
#define whole(s) (mv[s]==0 || (ma[s]==NONE -> own[s] : mem[ma[s]])==mv[s])

proctype Trainer() {
end:
  do
  :: d_step { serves && changing==0 && turns>0 ->
       turns--; goal = other(goal);
       if :: off[goal]==NONE -> changing = 1; off[other(goal)] = NONE :: else -> at = off[goal] fi }
#ifdef BUG_LENT_NO_LOCK
  :: d_step { alive && changing==1 ->
#else
  :: d_step { alive && changing==1 && rd[at]==0 ->
#endif
       wl = at; mem[at] = TORN; changing = 2 }
#ifndef BUG_NO_BESIDE
  /* somebody reads it for long: both are complete then */
  :: d_step { alive && changing==1 && rd[at]!=0 && rd[1 - at]==0 ->
       off[other(goal)] = at; at = 1 - at; mem[at] = goal; off[goal] = at; changing = 0; beside = 1 }
#endif
  :: d_step { serves && changing==2 ->
       mem[at] = goal; wl = NONE; off[goal] = at; changing = 0;
       back = back | (goal==1);
#ifdef WITNESS_LENT_BACK
       assert(!back)
#endif
     }
  /* it is suspended for ever, and has the lock */
  :: d_step { serves && changing==2 && faults>0 -> faults--; stuck = 1 }
  :: d_step { serves && faults>0 -> faults--; alive = 0; wl = NONE; off[1] = NONE; off[2] = NONE; changing = 0 }
  od
}

inline map(s, x, v) { rd[x]++; ma[s] = x; mv[s] = v; lent[s] = NONE; fresh[s] = 0 }
inline unmap(s) { if :: ma[s]!=NONE -> rd[ma[s]]--; ma[s] = NONE :: else fi; mv[s] = 0 }

#define works(s) (!hangs[s])
/* its trainer gives it nothing any more, and does not write it */
#define left(s) (lent[s]!=NONE && !serves && wl!=lent[s])
#define wants(s) (works(s) && mv[s]!=tgt[s])
#ifdef BUG_LEND_READ
#define may_lend(s) (wants(s) && ma[s]!=NONE)
#else
#define may_lend(s) (wants(s) && ma[s]!=NONE && lr[s]!=1)
#endif

proctype Sidecar(byte s) {
end:
  do
  /* the decision is stored */
  :: d_step { works(s) && serves && tgt[s]!=goal && lent[s]==NONE && (mv[s]==tgt[s] || fresh[s]) -> tgt[s] = goal }
  /* the arena is lent */
  :: d_step { may_lend(s) -> lent[s] = ma[s]; unmap(s) }
  /* it is not, because this process reads it: the version is mapped beside it */
  :: d_step { wants(s) && ma[s]!=NONE && lr[s]==1 && serves && off[tgt[s]]!=NONE && wl!=off[tgt[s]] ->
       rd[la[s]]++; lr[s] = 2;      /* the reader keeps the lease of the version before */
       unmap(s); map(s, off[tgt[s]], tgt[s]) }
  /* the trainer gives the version, in that arena or in another one */
  :: d_step { wants(s) && ma[s]==NONE && own[s]==0 && serves && off[tgt[s]]!=NONE && wl!=off[tgt[s]] ->
       assert(mem[off[tgt[s]]]==tgt[s]); map(s, off[tgt[s]], tgt[s]) }
  /* it was told to go back meanwhile, and refuses */
  :: d_step { wants(s) && lent[s]!=NONE && serves && changing==0 && goal!=tgt[s] && off[tgt[s]]==NONE ->
       assert(mem[lent[s]]==other(tgt[s])); own[s] = tgt[s]; mv[s] = tgt[s]; lent[s] = NONE }
  /* in an arena of its own it needs no trainer */
  :: d_step { wants(s) && own[s]!=0 -> own[s] = tgt[s]; mv[s] = tgt[s] }
#ifndef BUG_WAIT_LOST
  /* it has ended: what is in the arena? */
#ifdef BUG_TAKE_ANY
  :: d_step { wants(s) && left(s) -> map(s, lent[s], tgt[s]) }
#else
  :: d_step { wants(s) && left(s) && mem[lent[s]]==tgt[s] -> map(s, lent[s], tgt[s]) }
#endif
  :: d_step { wants(s) && left(s) && mem[lent[s]]==other(tgt[s]) ->
       own[s] = tgt[s]; mv[s] = tgt[s]; lent[s] = NONE }
  :: d_step { wants(s) && left(s) && mem[lent[s]]==TORN ->
#ifdef BUG_BASE_UNFINISHED      /* it is copied as if it were the base */
       own[s] = TORN;
#else
       own[s] = tgt[s];
#endif
       mv[s] = tgt[s]; lent[s] = NONE; torn_used = 1;
#ifdef WITNESS_TORN
       assert(!torn_used)
#endif
     }
#endif
#ifndef BUG_WAIT_STUCK
  /* nobody can read it: both versions are given up, and come from the next trainer */
  :: d_step { wants(s) && lent[s]!=NONE && stuck && wl==lent[s] -> own[s] = 0; lent[s] = NONE; fresh[s] = 1; given_up = 1;
#ifdef WITNESS_GIVEN_UP
       assert(!given_up)
#endif
     }
#endif
  :: d_step { works(s) && faults>0 && !fresh[s] -> faults--;
       if :: lr[s]==1 -> lr[s] = 0 :: else fi;
       unmap(s); own[s] = 0; lent[s] = NONE; fresh[s] = 1 }
  :: d_step { works(s) && faults>0 -> faults--; hangs[s] = 1;
       if :: lr[s]==1 -> rd[la[s]]++; lr[s] = 2 :: else fi }
  od
}

proctype Reader(byte s) {
end:
  do
  :: d_step { works(s) && lr[s]==0 && mv[s]!=0 && ma[s]!=NONE -> lr[s] = 1; la[s] = ma[s]; lv[s] = mv[s] }
  :: d_step { works(s) && lr[s]==0 && mv[s]!=0 && ma[s]!=NONE -> lr[s] = 2; la[s] = ma[s]; lv[s] = mv[s]; rd[la[s]]++ }
  :: d_step { lr[s]!=0 -> assert(mem[la[s]]==lv[s]);
       if :: lr[s]==2 -> rd[la[s]]-- :: else fi; lr[s] = 0; la[s] = 0; lv[s] = 0 }
  od
}

proctype Monitor() {
end:
  do
  /* a version that is complete has its bytes */
  :: d_step { !whole(0) || !whole(1) -> all_whole = 0; assert(all_whole) }
#ifdef WITNESS_BESIDE
  :: d_step { beside -> assert(!beside) }
#endif
  :: atomic { timeout ->
       assert(!serves || (changing==0 && off[goal]!=NONE));
       assert(hangs[0] || (mv[0]==tgt[0] && (!serves || tgt[0]==goal)) || (fresh[0] && !serves));
       assert(hangs[1] || (mv[1]==tgt[1] && (!serves || tgt[1]==goal)) || (fresh[1] && !serves));
       break }
  od
}

init { atomic {
  mem[0] = 1; off[1] = 0; rd[0] = 2; ma[0] = 0; ma[1] = 0; mv[0] = 1; mv[1] = 1;
  run Trainer(); run Monitor(); run Sidecar(0); run Sidecar(1); run Reader(0); run Reader(1) } }

/* The hop between a trainer and a coordinator of another process, as a SPIN model: two publishes that are kept, a connection that
 * breaks, a coordinator that is killed and comes back with its record, and a rollback. What the sidecars do is left to the other
 * models: a round is decided or fails, and ends. README.md says what must hold.
 *
 * Each fault takes one from NF: the connection breaks with all that is under way, or the coordinator is killed.
 *
 * Bounds: NF NROLL (rollbacks) NREQ (requests for a round).  Planted: BUG_*.  WITNESS_*: must be reached.
 */
#ifndef NF
#define NF 2
#endif
#ifndef NROLL
#define NROLL 1
#endif
#ifndef NREQ
#define NREQ 5
#endif
#define NP 2                    /* publishes; a later one has newer weights */

/* a publish at its trainer */
#define READY 0
#define OPEN 1                  /* its round was requested */
#define HELD 2                  /* its round was lost: it gets another one, under the same name and in the same epoch */
#define SERVED 3
#define FAILED 4
/* a round at its coordinator */
#define NO 0
#define RUNS 1
#define DECIDED 2

mtype = { HELLO, REQUEST, FACTS, END_SERVED, END_FAILED, LOSS, NOT_YOU };
chan up = [3] of { mtype, byte, byte, byte };        /* REQUEST: publish, request; HELLO: a request for each open publish, 0: none */
chan down = [6] of { mtype, byte, byte };             /* publish, request; FACTS: 0, epoch */

byte faults = NF, rolls = NROLL, next = 1;
bool connected = 1, alive = 1;
/* the trainer. The name of a publish is its number and the epoch in which it was given */
byte tr[NP], req[NP];
byte known, of_epoch[NP];       /* the epoch of its coordinator, as it has heard; that of a name */
bool attached;                  /* facts have come on this connection */
/* the coordinator */
byte epoch = 1, cr[NP], creq[NP], unsent[NP];   /* unsent: 1 it was served, 2 it has failed */
bool has_trainer;               /* it has said Hello on this connection */
/* its record: the publish of the target, NONE without one; those that were taken back */
#define NONE 9
byte target = NONE;
bool taken_back[NP];
/* what has happened */
bool was_decided[NP], held_once, ended_by_record;

#define other(p) (1-(p))

inline tell(kind, p) { if :: connected && has_trainer -> down!kind,p,creq[p] :: else fi }
inline forget_connection() {
  do :: up?_,_,_,_ :: empty(up) -> break od;
  do :: down?_,_,_ :: empty(down) -> break od;
  connected = 0; attached = 0; has_trainer = 0 }

/* The newest publish alone is kept: an older one that was published later would take its place. */
#ifdef BUG_HOP_KEEP_OLDER
#define is_newest(p) true
#else
#define is_newest(p) ((p)==NP-1 || (tr[NP-1]!=OPEN && tr[NP-1]!=HELD))
#endif
/* A Hello that is said again is answered again, perhaps when the publish has requested another round already. */
#ifdef BUG_HOP_ONE_NUMBER
#define awaits(p, x) (tr[p]==OPEN)
#else
#define awaits(p, x) (tr[p]==OPEN && req[p]==(x))
#endif
inline ask(p) { tr[p] = OPEN; req[p] = next; next++; up!REQUEST,p,req[p],0 }

proctype Trainer() {
  byte p, x; mtype kind;
end:
  do
  :: d_step { connected && !attached && nfull(up) && empty(up) ->
       up!HELLO,0,(tr[0]==OPEN -> req[0] : 0),(tr[1]==OPEN -> req[1] : 0) }
  :: d_step { connected && attached && nfull(up) && next<=NREQ && tr[0]==READY -> of_epoch[0] = known; ask(0) }
  :: d_step { connected && attached && nfull(up) && next<=NREQ && tr[0]!=READY && tr[1]==READY ->
       if :: tr[0]==HELD -> tr[0] = FAILED :: else fi;      /* it gives way */
       of_epoch[1] = known; ask(1) }
  :: d_step { connected && attached && nfull(up) && next<=NREQ && tr[0]==HELD && of_epoch[0]==known -> ask(0) }
  :: d_step { connected && attached && nfull(up) && next<=NREQ && tr[1]==HELD && of_epoch[1]==known -> ask(1) }
  /* its snapshot may still be read under a name of the epoch before */
  :: d_step { attached && tr[0]==HELD && of_epoch[0]!=known -> tr[0] = FAILED }
  :: d_step { attached && tr[1]==HELD && of_epoch[1]!=known -> tr[1] = FAILED }
  :: d_step { nempty(down) -> down?kind,p,x;
       if
       :: kind==FACTS -> attached = 1; known = x
       :: kind==NOT_YOU -> attached = 0
       :: kind==END_SERVED && awaits(p, x) -> assert(was_decided[p]); tr[p] = SERVED
       :: kind==END_FAILED && awaits(p, x) -> assert(!was_decided[p]); tr[p] = FAILED
       :: kind==LOSS && awaits(p, x) ->
            if :: is_newest(p) -> tr[p] = HELD; held_once = 1 :: else -> tr[p] = FAILED fi
       :: else                       /* said twice */
       fi; p = 0; x = 0; kind = 0 }
  od
}

#ifdef BUG_HOP_TAKEN_BACK
#define in_record(q) (target==(q))
#else
#define in_record(q) (target==(q) || taken_back[q])
#endif
/* The answer to one request of a Hello. */
inline compare(q, x) {
  if
  :: x==0 ->                         /* its trainer does not wait for it any longer */
       if :: cr[q]==RUNS -> cr[q] = NO :: else fi
  :: x!=0 && cr[q]!=NO && creq[q]==x -> skip
#ifndef BUG_HOP_NOT_COMPARED
  :: x!=0 && (cr[q]==NO || creq[q]!=x) && creq[q]==x && unsent[q]==1 -> down!END_SERVED,q,x; unsent[q] = 0
  :: x!=0 && (cr[q]==NO || creq[q]!=x) && creq[q]==x && unsent[q]==2 -> down!END_FAILED,q,x; unsent[q] = 0
  :: x!=0 && (cr[q]==NO || creq[q]!=x) && (creq[q]!=x || unsent[q]==0) && in_record(q) -> down!END_SERVED,q,x; ended_by_record = 1
  :: x!=0 && (cr[q]==NO || creq[q]!=x) && (creq[q]!=x || unsent[q]==0) && !in_record(q) -> down!LOSS,q,x
#else
  :: else
#endif
  fi }

/* The older publish first: one round at a time, in their order. */
#define turn(p) (cr[p]==RUNS && cr[other(p)]!=DECIDED && ((p)==0 || cr[0]!=RUNS))

inline decide(p) {
  assert(!taken_back[p]);            /* nobody decides again what an operator has taken back */
  assert(target==NONE || target<=(p));       /* nor older weights over newer ones */
  cr[p] = DECIDED; target = p; was_decided[p] = 1 }
inline ended(p, how, kind) { cr[p] = NO; unsent[p] = (connected && has_trainer -> 0 : how); tell(kind, p) }

proctype Coordinator() {
  byte a, b, c; mtype kind;
end:
  do
  :: d_step { alive && nempty(up) && len(down)<=2 -> up?kind,a,b,c;
       if
       :: kind==HELLO -> has_trainer = 1; down!FACTS,0,epoch; compare(0, b); compare(1, c)
       :: kind==REQUEST && !has_trainer -> down!NOT_YOU,0,0
       /* the name of what was decided is not free */
       :: kind==REQUEST && has_trainer && cr[a]==NO && in_record(a) -> down!END_SERVED,a,b
       :: kind==REQUEST && has_trainer && cr[a]==NO && !in_record(a) -> cr[a] = RUNS; creq[a] = b; unsent[a] = 0
       :: else
       fi; a = 0; b = 0; c = 0; kind = 0 }
  :: d_step { alive && turn(0) -> decide(0) }
  :: d_step { alive && turn(1) -> decide(1) }
  /* a round ends, or fails before its decision */
  :: d_step { alive && cr[0]==DECIDED && len(down)<=2 -> ended(0, 1, END_SERVED) }
  :: d_step { alive && cr[1]==DECIDED && len(down)<=2 -> ended(1, 1, END_SERVED) }
  :: d_step { alive && turn(0) && len(down)<=2 -> ended(0, 2, END_FAILED) }
  :: d_step { alive && turn(1) && len(down)<=2 -> ended(1, 2, END_FAILED) }
  /* its trainer does not come back in time: what is not decided ends, and nobody is told */
  :: d_step { alive && !has_trainer && (cr[0]==RUNS || cr[1]==RUNS || unsent[0]!=0 || unsent[1]!=0) ->
       if :: cr[0]==RUNS -> cr[0] = NO :: else fi;
       if :: cr[1]==RUNS -> cr[1] = NO :: else fi;
       unsent[0] = 0; unsent[1] = 0 }
  /* an operator goes back */
  :: d_step { alive && rolls>0 && target!=NONE && cr[0]!=DECIDED && cr[1]!=DECIDED ->
       rolls--; taken_back[target] = 1; target = NONE }
  od
}

proctype Faults() {
end:
  do
  :: d_step { faults>0 && connected -> faults--; forget_connection() }
  :: d_step { !connected && alive -> connected = 1 }
  :: d_step { faults>0 && alive -> faults--; alive = 0; forget_connection();
       cr[0] = NO; cr[1] = NO; creq[0] = 0; creq[1] = 0; unsent[0] = 0; unsent[1] = 0 }
  :: d_step { !alive -> alive = 1; epoch++ }
  od
}

proctype Monitor() {
end:
  do
#ifdef WITNESS_HELD
  :: d_step { held_once && tr[0]==SERVED && tr[1]==SERVED -> assert(!held_once) }
#endif
#ifdef WITNESS_BY_RECORD
  :: d_step { ended_by_record -> assert(!ended_by_record) }
#endif
  :: atomic { timeout ->
       /* every publish was answered, unless this model has no requests left */
       assert(next>NREQ || (tr[0]>=SERVED && tr[1]>=SERVED));
       assert(tr[0]!=OPEN && tr[1]!=OPEN);
       break }
  od
}

init { atomic { run Trainer(); run Monitor(); run Coordinator(); run Faults() } }

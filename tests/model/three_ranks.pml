/* One replica of three ranks that switches from version 1 to version 2, as a SPIN model: a rank that is ready, one that
 * refuses and one that is slow or killed, and serving steps before, between and after. README.md says what it adds to
 * update_protocol.pml, whose replicas have two ranks.
 *
 * Rank 0 leads: it opens a step by a header to each follower, and all three meet in the step's collective. The links are
 * reliable with one command outstanding; a crash of the rank loses it. Each fault takes one from NF: a rank is killed, a load
 * is refused before or after its first byte, a load is given up at its deadline while the rank still writes, a pause
 * reaches its deadline.
 *
 * Bounds: NF MAXSTEP (serving steps on each version).  Planted: BUG_*.  WITNESS_*: must be reached.
 */
#ifndef NF
#define NF 1
#endif
#ifndef MAXSTEP
#define MAXSTEP 1
#endif
#define N 3
#define OLD 1
#define NEW 2

/* sidecar */
#define IDLE 0
#define PAUSING 1
#define ALLPAUSED 2
#define LOADING 3
#define COMMITTING 4
#define RESUMING 5
/* rank; its states and commands as in update_protocol.pml */
#define DOWN 0
#define SERV 1
#define PAUSED 2
#define TAINT 3
#define LOADED 4
#define C_PAUSE 1
#define C_LOAD 2
#define C_COMMIT 3
#define C_RESUME 4
#define C_CANCEL 5
#define H_GO 1
#define H_STOP 2

byte faults = NF;
byte ph, cur;                        /* phase; the version that the switch goes to */
byte rs[N] = SERV, ver[N] = OLD, mem[N] = OLD;
byte ins[N];                         /* 1: in the step before its collective, 2: after it */
byte cmd[N];
bool ack[N], bad[N], conn[N] = 1;    /* bad: it has answered that its load has failed */
byte hdr[N], hver[N];                /* the header on its way to a follower */
bool brk;                            /* the group has lost a rank and is not formed again */
byte steps[NEW+1];                   /* steps begun on each version */
bool met[NEW+1];                     /* a step on this version met in its collective */
bool killed;                         /* after a step on the old version had met */

#define ALL(P) (P(0) && P(1) && P(2))
#define whole(x) ((rs[x]==SERV || rs[x]==PAUSED) && ver[x]!=0)
#define same(x) (whole(x) && ver[x]==ver[0])
#define linked(x) conn[x]
#define acked(x) ack[x]
#define loaded(x) (ack[x] && !bad[x])
#define quiet(x) (cmd[x]==0)
#define outside(x) (ins[x]==0)
#define calm(x) (hdr[x]==0)
#define follows(x) (x==0 || (rs[x]!=SERV && hdr[x]==0))
#define ready(x) (conn[x] && same(x) && (rs[x]==SERV || x>0))
#define serving (ALL(ready))
#define each(C) cmd[0] = C; cmd[1] = C; cmd[2] = C; clear_acks
#define clear_acks ack[0] = 0; ack[1] = 0; ack[2] = 0; bad[0] = 0; bad[1] = 0; bad[2] = 0
#define resume cmd[0] = C_RESUME; clear_acks; ph = RESUMING
#define two(P) ((P(0) && P(1)) || (P(0) && P(2)) || (P(1) && P(2)))

#define HAS_FAILED (!ALL(loaded) && ALL(acked))
#ifdef BUG_TWO_OF_THREE  /* two of three that are ready, the leader among them, are enough to commit: those two do */
#define MAY_COMMIT (loaded(0) && two(loaded))
#define commit(x) if :: loaded(x) -> cmd[x] = C_COMMIT; ack[x] = 0 :: else -> ack[x] = 1 fi
#else
#define MAY_COMMIT ALL(loaded)
#define commit(x) cmd[x] = C_COMMIT; ack[x] = 0
#endif
#ifdef BUG_RESUME_TWO    /* the leader resumes when it and another one have committed */
#define MAY_RESUME (ack[0] && two(acked))
#else
#define MAY_RESUME (ALL(acked))
#endif

active proctype Sidecar() {
end:
  do
  :: d_step { ph==IDLE && ALL(linked) && ALL(quiet) && !(serving && ver[0]==NEW) ->
       cur = NEW; ph = PAUSING; cmd[0] = C_PAUSE; clear_acks }
  :: d_step { ph==PAUSING && ALL(linked) && ack[0] && ALL(follows) ->
       assert(ALL(outside)); ph = ALLPAUSED }
  /* the pause reaches its deadline: untouched, it goes on with what it has, and tries again */
  :: d_step { ph==PAUSING && ALL(linked) && ALL(quiet) && ALL(same) && faults>0 -> faults--; resume }
  :: d_step { ph==ALLPAUSED && ALL(linked) ->
       if :: ALL(same) && ver[0]==NEW -> resume :: else -> each(C_LOAD); ph = LOADING fi }
  /* a load was refused, or a slow one is given up: only if no byte has changed the replica goes on with what it has */
  :: d_step { ph==LOADING && ALL(linked) && HAS_FAILED ->
       if :: ALL(same) -> resume :: else -> ph = ALLPAUSED fi }
  :: d_step { ph==LOADING && ALL(linked) && !ALL(acked) && faults>0 -> faults--; each(C_CANCEL) }
  :: d_step { ph==LOADING && ALL(linked) && MAY_COMMIT -> commit(0); commit(1); commit(2); ph = COMMITTING }
  :: d_step { ph==COMMITTING && ALL(linked) && MAY_RESUME -> resume }
  :: d_step { ph==RESUMING && ALL(linked) && ack[0] && ALL(quiet) ->
       ph = IDLE; clear_acks }
  od
}

#define AGREES(x) ((rs[x]==SERV || rs[x]==PAUSED) && ver[x]==hver[x])
#define STEP_OK(x) assert(ver[x]!=0 && mem[x]==ver[x])
#define drop_headers hdr[1] = 0; hdr[2] = 0; hver[1] = 0; hver[2] = 0
/* a refused step is left by all that wait in it; a step of a group that has lost a rank by each that is in it */
#ifdef BUG_KEEP_STEP     /* it is kept, and met by a rank that has been killed and loaded in between */
#define leave_step(x) ins[x] = (ins[x]==1 -> 1 : 0)
#define EMPTY 1
#else
#define leave_step(x) ins[x] = 0
#define EMPTY ALL(outside)
#endif
#define abort_step ins[0] = (ins[0]==1 -> 0 : ins[0]); ins[1] = (ins[1]==1 -> 0 : ins[1]); ins[2] = (ins[2]==1 -> 0 : ins[2])

proctype Rank(byte x) {
end:
  do
  /* the leader opens a step */
  :: d_step { x==0 && rs[0]==SERV && ins[0]==0 && hdr[1]==0 && hdr[2]==0 && !brk && steps[ver[0]]<MAXSTEP ->
       STEP_OK(0); steps[ver[0]]++; ins[0] = 1; hdr[1] = H_GO; hdr[2] = H_GO; hver[1] = ver[0]; hver[2] = ver[0] }
  :: d_step { x>0 && hdr[x]==H_GO && rs[x]!=DOWN && ins[x]==0 && !brk ->
       hdr[x] = 0;
       if
       :: AGREES(x) -> STEP_OK(x); rs[x] = SERV; ins[x] = 1
       :: else -> abort_step; rs[0] = (rs[0]==SERV -> PAUSED : rs[0]); drop_headers
       fi;
       hver[x] = 0 }
  :: d_step { x>0 && hdr[x]==H_STOP && rs[x]!=DOWN && ins[x]==0 && !brk ->
       rs[x] = (rs[x]==SERV -> PAUSED : rs[x]); hdr[x] = 0 }
  /* the collective of the step, and its end */
  :: d_step { x==0 && ins[0]==1 && ins[1]==1 && ins[2]==1 && !brk ->
       assert(ver[0]==ver[1] && ver[1]==ver[2]); STEP_OK(0); STEP_OK(1); STEP_OK(2);
       met[ver[0]] = 1; ins[0] = 2; ins[1] = 2; ins[2] = 2;
#ifdef WITNESS_STEPS     /* a step, a kill, and a step on the new version */
       assert(!(met[OLD] && killed && met[NEW]))
#endif
     }
  :: d_step { ins[x]==2 -> ins[x] = 0 }
  /* the group has lost a rank: leave the step, stay paused; it is formed again when nobody serves */
  :: d_step { brk && rs[x]==SERV -> leave_step(x); rs[x] = PAUSED }
  :: d_step { x==0 && brk && rs[0]>SERV && rs[1]>SERV && rs[2]>SERV && EMPTY ->
       brk = 0; drop_headers }
  /* the commands of the sidecar */
  :: d_step { x==0 && cmd[0]==C_PAUSE && rs[0]==SERV && ins[0]==0 && hdr[1]==0 && hdr[2]==0 && !brk ->
       hdr[1] = H_STOP; hdr[2] = H_STOP; rs[0] = PAUSED; cmd[0] = 0; ack[0] = 1 }
  /* a leader that has stopped already tells the others as well: a follower of a refused step still waits for a header */
#ifdef BUG_SILENT_STOP
#define STOP_HEADERS skip
#else
#define STOP_HEADERS if :: !brk -> hdr[1] = H_STOP; hdr[2] = H_STOP :: else fi
#endif
  :: d_step { x==0 && cmd[0]==C_PAUSE && rs[0]>SERV && hdr[1]==0 && hdr[2]==0 -> STOP_HEADERS; cmd[0] = 0; ack[0] = conn[0] }
  :: d_step { cmd[x]==C_LOAD && rs[x]!=DOWN && rs[x]!=TAINT ->
       assert(rs[x]!=SERV && ins[x]!=2); mem[x] = 0; rs[x] = TAINT }
  :: d_step { cmd[x]==C_LOAD && rs[x]==TAINT -> mem[x] = cur; rs[x] = LOADED; cmd[x] = 0; ack[x] = conn[x] }
  /* it refuses, before or after the first byte */
  :: d_step { cmd[x]==C_LOAD && rs[x]!=DOWN && faults>0 -> faults--; cmd[x] = 0; ack[x] = conn[x]; bad[x] = 1 }
  :: d_step { cmd[x]==C_CANCEL -> cmd[x] = 0; ack[x] = conn[x]; bad[x] = 1;
       rs[x] = (rs[x]==LOADED -> TAINT : rs[x]) }
  :: d_step { cmd[x]==C_COMMIT -> cmd[x] = 0;
       if :: rs[x]==LOADED -> rs[x] = PAUSED; ver[x] = mem[x]; ack[x] = conn[x] :: else fi }
  :: d_step { cmd[x]==C_RESUME && !brk -> cmd[x] = 0;
       if :: whole(x) ->
            assert((ver[1]==0 || (ver[1]==ver[0] && rs[1]!=LOADED)) && (ver[2]==0 || (ver[2]==ver[0] && rs[2]!=LOADED)));
            rs[x] = SERV; ack[x] = conn[x]
       :: else fi }
  /* its link begins again empty, and the sidecar begins with PAUSE */
  :: d_step { !conn[x] && rs[x]!=DOWN -> cmd[x] = 0; conn[x] = 1; clear_acks; ph = IDLE }
  /* killed and started again */
  :: d_step { rs[x]!=DOWN && faults>0 -> faults--; rs[x] = DOWN; ver[x] = 0; mem[x] = 0; ins[x] = 0; cmd[x] = 0;
       ack[x] = 0; bad[x] = 0; conn[x] = 0; brk = 1; killed = killed | met[OLD] }
  :: d_step { rs[x]==DOWN -> rs[x] = TAINT }
  od
}

/* At rest: all three serve the new version, and nobody is inside of a step. */
active proctype Monitor() {
  atomic { timeout ->
    assert(ph==IDLE && ALL(linked) && ALL(quiet) && ALL(calm) && !brk);
    assert(ALL(outside));
    assert(serving && ver[0]==NEW);
    assert(steps[NEW]==MAXSTEP) }
}

init { atomic { run Rank(0); run Rank(1); run Rank(2) } }

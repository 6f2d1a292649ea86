/* The update protocol of wsync as a SPIN model: what is modelled, its bounds and what it showed are in README.md.
 *
 * Global state, one looping process for each actor, each option one atomic action. A decision that was taken stays in
 * flight for ever: a sidecar may receive it never, once, many times and in any order (loss, duplication, reordering).
 * The link of a sidecar and a rank is reliable, with one outstanding command; a crash of either end may lose it.
 * Steps are led: rank 0 of a replica opens a step by a header, the other rank follows it.
 *
 * Each fault (crash of a coordinator, sidecar or rank, missed heartbeat, pause deadline) takes one from the budget NF.
 * Once nothing can move any more (timeout), Monitor checks where the system has come to rest.
 *
 * Bounds:  NF NREP NCO MAXSTEP MAXD MAXV     Modes: ADOPT with NARENA, COARSE, RESTART, NO_ROLLBACK
 * WITNESS_*: a state that must be reachable, stated as an assertion that must fail.
 * Planted: BUG_* is a defect of an implementation, AW_* a rule of the protocol as it was once written.
 */
#ifndef NF
#define NF 1
#endif
#ifndef NREP
#define NREP 2
#endif
#ifndef NCO
#define NCO 2
#endif
#ifndef MAXSTEP       /* serving steps of one replica */
#define MAXSTEP 1
#endif
#ifndef MAXD          /* decisions of one coordinator, its first one included; one more is kept for LEARN */
#define MAXD 3
#endif
#ifndef MAXV
#define MAXV 3
#endif
#ifndef NARENA
#define NARENA 2
#endif
#define NONE 7

/* coordinator */
#define OFF 0
#define CLAIM 1
#define READY 2
#define STAGING 3
#define WRITING 4
#define DEAD 5
#define STOPPED 6
/* sidecar: phase of the switch */
#define IDLE 0
#define PAUSING 1     /* PAUSE is with the leader; every rank has to answer PAUSED */
#define ALLPAUSED 2
#define LOADING 3
#define COMMITTING 4
#define RESUMING 5    /* RESUME is with the leader */
/* rank */
#define DOWN 0
#define SERV 1        /* leader: may open a step; follower: its last header was `go` */
#define PAUSED 2      /* whole, not serving */
#define TAINT 3       /* `loading`: empty after a restart, or its memory is being changed */
#define LOADED 4      /* holds all of the new version, has not committed it */
/* header of a step, on its way to the follower */
#define H_GO 1
#define H_STOP 2
/* command to a rank */
#define C_PAUSE 1
#define C_LOAD 2
#define C_COMMIT 3
#define C_RESUME 4

#define bit(v) (1<<(v))
#define has(m,v) (((m)>>(v))&1)
#define A(r) (2*(r))            /* the leader   */
#define B(r) (2*(r)+1)          /* the follower */

/* Two equal replicas and one fault: if the fault hits a replica, call that one replica 0.
 * HIT_ONE asks for the same with more faults: not exhaustive then, for the search of a planted defect only. */
#if NREP>1 && (NF==1 || defined(HIT_ONE))
#define HIT(r) (faults>0 && (r)==0)
#else
#define HIT(r) (faults>0)
#endif

byte faults = NF;
byte nextv = 2;                /* a version number is given once */

/* coordinators, each with its trainer */
byte cst[2], cf[2];            /* cf: fence = epoch*4 + run id */
byte got[2], key[2];           /* Hellos seen, highest decision among them */
byte tgt[2] = 1, cwd[2];       /* target, withdrawn versions */
byte nd[2], pubv[2], ackS[2];
byte dT[10], dW[10];           /* decision log: target, withdrawn, at [c*5+d] */

/* sidecars: on disc */
byte pf[2], pK[2], pT[2] = 1, pW[2];  /* fence; decision = fence*8+number; target; withdrawn */
/* sidecars: in memory */
bool up[2] = 1;
byte staged[2] = 2;            /* set of versions held */
byte ph[2], cur[2];            /* phase; version the switch goes to */
byte rep[2] = 1;               /* version reported as served, 0: not ready */

/* ranks */
byte rs[4] = SERV, ver[4] = 1, mem[4] = 1;
byte ins[4];                   /* 1: in the step before its collective, 2: after it */
byte cmd[4];
bool ack[4], conn[4] = 1;
byte hdr[2], hver[2], steps[2];
bool brk[2];                   /* the group lost a rank and is not re-formed */
#ifdef ADOPT
byte av[4], acont[4];          /* arena: version it is meant for, content (0: being written) */
byte mp[4], pm[4] = NONE;      /* arena in use, arena mapped for the next version */
#endif

/* what really happened, for the checks only */
byte gpf[2], gwd[2], gdone;
#ifdef AW_FORWARD
byte glast[2] = 1;
#endif

#ifdef ADOPT
#define MEM(x) (mp[x]<NARENA -> acont[mp[x]] : 0)
#else
#define MEM(x) mem[x]
#endif
#define whole(x) ((rs[x]==SERV || rs[x]==PAUSED) && ver[x]!=0)      /* as the rank knows it */
#define intact(r) (ver[A(r)]==ver[B(r)] && whole(A(r)) && whole(B(r)))
/* as the sidecar reads it from its live links */
#define linked(r) (conn[A(r)] && conn[B(r)])
#define serving(r) (linked(r) && rs[A(r)]==SERV && (rs[B(r)]==SERV || rs[B(r)]==PAUSED) && ver[A(r)]==ver[B(r)])
#define alive(c) (cst[c]>=CLAIM && cst[c]<=WRITING)
#define working(c) (cst[c]>=READY && cst[c]<=WRITING)
#ifdef BUG_EPOCH_ONLY
#define fence_ok(f,r) ((f)/4 >= pf[r]/4)
#define dec_new(c,d,r) (cf[c]/4 > pK[r]/32 || (cf[c]/4 == pK[r]/32 && (d) >= pK[r]%8 && cf[c]*8+(d)!=pK[r]))
#else
#define fence_ok(f,r) ((f) >= pf[r])
#define dec_new(c,d,r) (cf[c]*8+(d) > pK[r])
#endif

/* Property 4: what changes state under fence f was not fenced out. */
inline see(f,r) { assert(f >= gpf[r]); pf[r] = f; gpf[r] = f }
/* Property 1, at the beginning and at the collective of a step: whole weights, and the version that is reported. */
#define STEP_OK(x) assert(ver[x]!=0 && MEM(x)==ver[x]); assert(rep[(x)/2]==0 || rep[(x)/2]==ver[x])
/* Property 3: a withdrawn version is never committed and never resumed. */
#define NOT_WITHDRAWN(r,v) assert(!has(gwd[r],v) && !has(gdone,v))

inline decide(c,v,w) {
  nd[c]++; assert(nd[c]<=4);
  dT[c*5+nd[c]] = v; dW[c*5+nd[c]] = w; cwd[c] = dW[c*5+nd[c]]; tgt[c] = v
}
#define FORGET(c) got[c] = 0; key[c] = 0; pubv[c] = 0; ackS[c] = 0

#ifdef RESTART        /* the second coordinator starts only when the first has crashed */
#define MAY_START(c) ((c)==0 || cst[0]==DEAD)
#else
#define MAY_START(c) 1
#endif
proctype Coord(byte c) {
  byte e;
end:
  do
  /* start: read the fences that can be read now, take the next epoch */
  :: d_step { cst[c]==OFF && MAY_START(c) && (up[0] || (NREP>1 && up[1])) ->
       if :: up[0] -> e = pf[0]/4 :: else fi;
       if :: NREP>1 && up[1] && pf[1]/4 > e -> e = pf[1]/4 :: else fi;
       cf[c] = (e+1)*4 + c + 1; e = 0; cst[c] = CLAIM }
  /* claim: the sidecar stores the fence and answers with its Hello */
#define HELLO(r) \
  :: d_step { cst[c]==CLAIM && up[r] && !has(got[c],r) && HELLO_OK(r) -> \
       HELLO_FENCE(r); got[c] = got[c] | bit(r); cwd[c] = cwd[c] | pW[r]; HELLO_TARGET(r) }
#ifdef AW_HELLO       /* Hellos are read first, the fence arrives later */
#define HELLO_OK(r) 1
#define HELLO_FENCE(r) skip
#else
#define HELLO_OK(r) fence_ok(cf[c],r)
#define HELLO_FENCE(r) see(cf[c],r)
#endif
#ifdef AW_TARGET      /* the highest version that any replica has begun or finished, not the newest decision's */
#define HELLO_TARGET(r) if :: ver[A(r)] > tgt[c] -> tgt[c] = ver[A(r)] :: else fi; \
       if :: pT[r] > tgt[c] -> tgt[c] = pT[r] :: else fi; cwd[c] = 0
#else
#define HELLO_TARGET(r) if :: pT[r]!=0 && pK[r] >= key[c] -> key[c] = pK[r]; tgt[c] = pT[r] :: else fi
#endif
  HELLO(0)
#if NREP>1
  HELLO(1)
#endif
  /* enough Hellos: complete what the newest decision began */
#define KNOWS(c,r) assert(!has(got[c],r) || pf[r]>cf[c] || !has(gwd[r],tgt[c]))   /* property 6 */
#define BEGIN_WORK(c) \
       if :: has(cwd[c],tgt[c]) -> tgt[c] = 1 :: else fi; \
       KNOWS(c,0); KNOWS(c,1); \
       decide(c,tgt[c],cwd[c]); got[c] = 0; key[c] = 0; cst[c] = READY
  :: d_step { cst[c]==CLAIM && got[c]!=0 &&
       (has(got[c],0) || !up[0]) && (NREP==1 || has(got[c],1) || !up[1]) -> BEGIN_WORK(c) }
#if NREP>1
  :: d_step { cst[c]==CLAIM && got[c]!=0 && got[c]!=3 && (has(got[c],1) -> HIT(0) : HIT(1)) ->   /* heartbeat missed */
       faults--; BEGIN_WORK(c) }
#endif
  /* publish the next version */
  :: d_step { cst[c]==READY && nextv<=MAXV && nd[c]<MAXD ->
       pubv[c] = nextv; nextv++; ackS[c] = 0;
#ifdef ADOPT
       cst[c] = WRITING }
#define SCHOLD(a) ((up[0] && has(staged[0],av[a])) || (NREP>1 && up[1] && has(staged[1],av[a])))
#define RKHOLD(a) (mp[0]==a||pm[0]==a||mp[1]==a||pm[1]==a||(NREP>1&&(mp[2]==a||pm[2]==a||mp[3]==a||pm[3]==a)))
#ifdef BUG_LEASE_MSG  /* free when the sidecars have said so, or are gone */
#define HELD(a) SCHOLD(a)
#else                 /* the kernel's lock: nobody at all has it mapped */
#define HELD(a) (SCHOLD(a) || RKHOLD(a))
#endif
#define WRITE(a) \
  :: d_step { cst[c]==WRITING && !HELD(a) -> av[a] = pubv[c]; acont[a] = 0; cst[c] = STAGING } \
  :: d_step { cst[c]==STAGING && av[a]==pubv[c] && acont[a]==0 -> acont[a] = pubv[c] }
  WRITE(0) WRITE(1)
#if NARENA>2
  WRITE(2)
#endif
  :: d_step { cst[c]==WRITING -> pubv[c] = 0; cst[c] = READY }   /* busy until the deadline */
#else
       cst[c] = STAGING }
#endif
  /* commit: all = every live replica has staged it; then the decision */
  :: d_step { cst[c]==STAGING && ackS[c]!=0 &&
       (has(ackS[c],0) || !up[0]) && (NREP==1 || has(ackS[c],1) || !up[1]) ->
       decide(c,pubv[c],cwd[c]); pubv[c] = 0; ackS[c] = 0; cst[c] = READY }
#if NREP>1
  :: d_step { cst[c]==STAGING && (ackS[c]==1 || ackS[c]==2) && (ackS[c]==2 -> HIT(0) : HIT(1)) ->   /* heartbeat missed */
       faults--; decide(c,pubv[c],cwd[c]); pubv[c] = 0; ackS[c] = 0; cst[c] = READY }
#endif
  :: d_step { cst[c]==STAGING && faults>0 -> faults--; pubv[c] = 0; ackS[c] = 0; cst[c] = READY } /* deadline: round failed */
  /* rollback to V1: every live replica still holds it */
#ifndef NO_ROLLBACK
  :: d_step { cst[c]==READY && nd[c]<MAXD && tgt[c]!=1 &&
       (!up[0] || has(staged[0],1)) && (NREP==1 || !up[1] || has(staged[1],1)) ->
       decide(c,1,(cwd[c] | bit(tgt[c]))) }
#if NREP>1
#define ROLLBACK_WITHOUT(r) \
  :: d_step { cst[c]==READY && nd[c]<MAXD && tgt[c]!=1 && up[r] && !has(staged[r],1) && HIT(r) && \
       up[1-(r)] && has(staged[1-(r)],1) -> faults--; decide(c,1,(cwd[c] | bit(tgt[c]))) }   /* heartbeat missed */
  ROLLBACK_WITHOUT(0) ROLLBACK_WITHOUT(1)
#endif
#endif
  /* a replica refused: it knows that the target was withdrawn */
#define LEARN(r) \
  :: d_step { cst[c]==READY && up[r] && pf[r]==cf[c] && has(pW[r],tgt[c]) && !has(cwd[c],tgt[c]) -> \
       decide(c,1,(cwd[c] | pW[r])) }
  LEARN(0)
#if NREP>1
  LEARN(1)
#endif
  /* a rollback is reported as done to the user */
#define ACKED(r) (pK[r]==cf[c]*8+nd[c] && rep[r]==1)
#ifdef AW_LIVE
#define ACKQ(r) (!up[r] || ACKED(r))
#else
#define ACKQ(r) ACKED(r)
#endif
  :: d_step { working(c) && nd[c]>0 && tgt[c]==1 && (gdone|cwd[c])!=gdone && ACKQ(0) && (NREP==1 || ACKQ(1)) ->
       gdone = gdone | cwd[c] }
  /* crash; learning of a higher fence */
  :: d_step { alive(c) && faults>0 -> faults--; cst[c] = DEAD; FORGET(c) }
  :: d_step { alive(c) && ((up[0] && pf[0]>cf[c]) || (NREP>1 && up[1] && pf[1]>cf[c])) -> cst[c] = STOPPED; FORGET(c) }
  od
}

#define acked(r) (ack[A(r)] && ack[B(r)])
#define quiet(r) (cmd[A(r)]==0 && cmd[B(r)]==0)
#define both(r,C) cmd[A(r)] = C; cmd[B(r)] = C; ack[A(r)] = 0; ack[B(r)] = 0
#ifdef BUG_RESUME_ALL /* RESUME to every rank: the follower then begins steps too */
#define resume(r) both(r,C_RESUME); ph[r] = RESUMING
#else
#define resume(r) cmd[A(r)] = C_RESUME; ack[A(r)] = 0; ack[B(r)] = 0; ph[r] = RESUMING
#endif
#define pending(r) (pT[r]!=cur[r] && pT[r]!=0 && has(staged[r],pT[r]))   /* a newer target can be loaded */

#ifdef AW_RESUME      /* a paused replica may be resumed on what it holds */
#define MAY_SERVE(r,v) 1
#else
#define MAY_SERVE(r,v) (!has(pW[r],v))
#endif
#ifdef AW_DEADLINE    /* a pause that ends at its deadline is always resumed on the old version */
#define MAY_GO_BACK(r,v) 1
#else
#define MAY_GO_BACK(r,v) MAY_SERVE(r,v)
#endif
#ifdef AW_COMMIT      /* what is loaded is committed, whatever was decided meanwhile */
#define MAY_COMMIT(r,v) 1
#else
#define MAY_COMMIT(r,v) MAY_SERVE(r,v)
#endif

#ifdef BUG_REPAIR_ONE  /* a rank that still holds a version is left as it is when the other one is repaired */
#define LOAD_ALL(r) \
       if :: ver[A(r)]==0 && rs[B(r)]==PAUSED -> cmd[A(r)] = C_LOAD; ack[A(r)] = 0; ack[B(r)] = 1 \
          :: ver[B(r)]==0 && rs[A(r)]==PAUSED -> cmd[B(r)] = C_LOAD; ack[B(r)] = 0; ack[A(r)] = 1 \
          :: else -> both(r,C_LOAD) fi
#define COMMIT_ALL(r) \
       ack[A(r)] = 1; ack[B(r)] = 1; \
       if :: rs[A(r)]==LOADED -> cmd[A(r)] = C_COMMIT; ack[A(r)] = 0 :: else fi; \
       if :: rs[B(r)]==LOADED -> cmd[B(r)] = C_COMMIT; ack[B(r)] = 0 :: else fi
#else
#define LOAD_ALL(r) both(r,C_LOAD)
#define COMMIT_ALL(r) both(r,C_COMMIT)
#endif

proctype Sidecar(byte r) {
end:
  do
  /* a decision arrives: any that was ever taken. Store, then act. */
#define DECISION(c,d) \
  :: d_step { up[r] && nd[c]>=d && fence_ok(cf[c],r) && dec_new(c,d,r) && !has(pW[r],dT[c*5+d]) -> \
       see(cf[c],r); pK[r] = cf[c]*8+d; pT[r] = dT[c*5+d]; \
       TAKE_WITHDRAWN(c,d); gwd[r] = gwd[r] | dW[c*5+d] } \
  :: d_step { up[r] && nd[c]>=d && fence_ok(cf[c],r) && dec_new(c,d,r) && has(pW[r],dT[c*5+d]) && cf[c]!=pf[r] -> \
       see(cf[c],r) }
#ifdef BUG_NO_WITHDRAW
#define TAKE_WITHDRAWN(c,d) skip
#else
#define TAKE_WITHDRAWN(c,d) pW[r] = pW[r] | dW[c*5+d]
#endif
  DECISION(0,1) DECISION(0,2) DECISION(0,3) DECISION(0,4)
#if NCO>1
  DECISION(1,1) DECISION(1,2) DECISION(1,3) DECISION(1,4)
#endif
  /* stage the waiting version, or the target (catch-up, repair) */
#ifdef ADOPT
#define THERE(v) (acont[0]==v || acont[1]==v || (NARENA>2 && acont[2]==v))
#else
#define THERE(v) 1
#endif
#define STAGE(c) \
  :: d_step { up[r] && cst[c]==STAGING && fence_ok(cf[c],r) && THERE(pubv[c]) && !has(ackS[c],r) -> \
       see(cf[c],r); staged[r] = staged[r] | bit(pubv[c]); ackS[c] = ackS[c] | bit(r) } \
  :: d_step { up[r] && working(c) && cf[c]==pf[r] && pT[r]!=0 && tgt[c]==pT[r] && !has(staged[r],pT[r]) && THERE(pT[r]) -> \
       staged[r] = staged[r] | bit(pT[r]) }
  STAGE(0)
#if NCO>1
  STAGE(1)
#endif
#ifdef ADOPT
  /* release: an older version that is neither served nor the target */
  :: d_step { up[r] && ph[r]==IDLE && rep[r]!=0 && rep[r]==pT[r] && NARENA==2 && (staged[r] & (bit(pT[r])-1))!=0 ->
       staged[r] = staged[r] & ~(bit(pT[r])-1) }
#endif
#ifdef COARSE         /* the switch of a replica as one action, no rank processes */
  :: d_step { up[r] && rep[r]==0 -> rep[r] = ver[A(r)] }
  :: d_step { up[r] && has(staged[r],pT[r]) && rep[r]!=pT[r] && pT[r]!=0 ->
       NOT_WITHDRAWN(r,pT[r]);
       ver[A(r)] = pT[r]; ver[B(r)] = pT[r]; mem[A(r)] = pT[r]; mem[B(r)] = pT[r]; rep[r] = pT[r] }
#else
  /* attached to ranks that serve; a rank is lost, or the leader reports a header that failed */
  :: d_step { up[r] && ph[r]==IDLE && rep[r]==0 && quiet(r) && serving(r) -> rep[r] = ver[A(r)] }
  :: d_step { up[r] && ph[r]==IDLE && rep[r]!=0 && !serving(r) -> rep[r] = 0 }
  /* begin a switch or a repair: PAUSE to the leader alone */
  :: d_step { up[r] && ph[r]==IDLE && linked(r) && quiet(r) &&
       ( (has(staged[r],pT[r]) && (ver[A(r)]!=pT[r] || !serving(r)))
      || (!has(staged[r],pT[r]) && intact(r) && MAY_SERVE(r,ver[A(r)]) && !serving(r)) ) ->
       if :: has(staged[r],pT[r]) -> cur[r] = pT[r] :: else -> cur[r] = ver[A(r)] fi;
       rep[r] = 0; ph[r] = PAUSING;
#ifdef BUG_OWN_STEP   /* PAUSE to every rank, each stops where it stands */
       both(r,C_PAUSE) }
#define ALL_PAUSED(r) acked(r)
#else
       cmd[A(r)] = C_PAUSE; ack[A(r)] = 0; ack[B(r)] = 0 }
#ifdef BUG_PAUSED_LEADER /* the leader's PAUSED is taken for all */
#define ALL_PAUSED(r) ack[A(r)]
#else                 /* the follower has answered for the leader's header */
#define ALL_PAUSED(r) (ack[A(r)] && rs[B(r)]!=SERV && hdr[r]==0)
#endif
#endif
  :: d_step { ph[r]==PAUSING && linked(r) && ALL_PAUSED(r) ->
       assert(ins[A(r)]==0 && ins[B(r)]==0);      /* property 2a: no rank is inside a step */
       ph[r] = ALLPAUSED }
  /* pause deadline: untouched, behind; the sidecar resumes it on the old version, unless that was withdrawn */
  :: d_step { ph[r]==PAUSING && HIT(r) && linked(r) && intact(r) && MAY_GO_BACK(r,ver[A(r)]) ->
       NOT_WITHDRAWN(r,ver[A(r)]);
       faults--; cur[r] = ver[A(r)]; resume(r) }
  :: d_step { ph[r]==ALLPAUSED && linked(r) ->
       ack[A(r)] = 0; ack[B(r)] = 0;
#ifdef AW_FORWARD     /* "once any rank has committed V the replica goes only forward to V" */
       if :: pending(r) && ver[A(r)]==ver[B(r)] -> cur[r] = pT[r] :: else fi;
       if :: ver[A(r)]!=ver[B(r)] && ver[A(r)]!=0 && ver[B(r)]!=0 ->
             if :: ver[A(r)]!=glast[r] -> cur[r] = ver[A(r)] :: else -> cur[r] = ver[B(r)] fi
       :: else fi;
#else
       if :: pending(r) -> cur[r] = pT[r] :: else fi;
#endif
       if
       :: intact(r) && ver[A(r)]==cur[r] && MAY_SERVE(r,cur[r]) -> NOT_WITHDRAWN(r,cur[r]); resume(r)
       :: else ->
            if :: has(staged[r],cur[r]) && !has(pW[r],cur[r]) -> LOAD_ALL(r); ph[r] = LOADING
            :: else -> ph[r] = IDLE fi            /* stays paused, not ready */
       fi }
  :: d_step { ph[r]==LOADING && linked(r) && acked(r) ->
       if
       :: pending(r) -> ph[r] = ALLPAUSED
       :: else ->
            if :: MAY_COMMIT(r,cur[r]) -> NOT_WITHDRAWN(r,cur[r]); COMMIT_ALL(r); ph[r] = COMMITTING
            :: else -> ph[r] = IDLE fi
       fi }
#ifdef BUG_EARLY_RESUME /* RESUME as soon as the leader has committed */
  :: d_step { ph[r]==COMMITTING && linked(r) && ack[A(r)] && cmd[A(r)]==0 -> resume(r) }
#endif
  :: d_step { ph[r]==COMMITTING && linked(r) && acked(r) ->
       if
#ifndef AW_FORWARD
       :: pending(r) -> ph[r] = ALLPAUSED
       :: !pending(r) && !MAY_SERVE(r,cur[r]) -> ph[r] = IDLE
#endif
       :: else -> NOT_WITHDRAWN(r,cur[r]); resume(r)
       fi }
  :: d_step { ph[r]==RESUMING && linked(r) && ack[A(r)] && quiet(r) ->
       ack[A(r)] = 0; ack[B(r)] = 0; ph[r] = IDLE;
       if :: serving(r) -> rep[r] = cur[r];
            assert(ver[A(r)]==cur[r] && MEM(A(r))==cur[r] && MEM(B(r))==cur[r]);    /* property 2 */
#ifdef AW_FORWARD
            glast[r] = cur[r]
#endif
       :: else fi }             /* its header failed: begin again */
#endif
  /* crash: memory, locks and links go; what was sent may still arrive */
  :: d_step { up[r] && HIT(r) -> faults--; up[r] = 0; staged[r] = 0; ph[r] = IDLE; cur[r] = 0; rep[r] = 0;
#ifndef COARSE
       conn[A(r)] = 0; conn[B(r)] = 0; ack[A(r)] = 0; ack[B(r)] = 0;
#endif
#ifdef BUG_FENCE_MEM
       pf[r] = 0; pK[r] = 0;
#endif
#ifdef AW_PERSIST     /* only the fence is stored */
       pK[r] = 0; pT[r] = 0; pW[r] = 0;
#endif
     }
  :: d_step { !up[r] -> up[r] = 1 }
  od
}

#define R (x/2)
#define P (x^1)
#define LEAD (x%2==0)
#define FOLLOW (x%2==1)
proctype Rank(byte x) {
end:
  do
  /* the leader opens a step */
  :: d_step { LEAD && rs[x]==SERV && ins[x]==0 && hdr[R]==0 && !brk[R] && steps[R]<MAXSTEP ->
       STEP_OK(x); steps[R]++; ins[x] = 1; hdr[R] = H_GO; hver[R] = ver[x] }
#ifdef BUG_FOLLOWER_BEGINS
  :: d_step { FOLLOW && rs[x]==SERV && ins[x]==0 && !brk[R] && steps[R]<MAXSTEP -> STEP_OK(x); steps[R]++; ins[x] = 1 }
#endif
  /* the follower takes the header: follows, or refuses and the leader aborts the step */
#ifdef BUG_NO_HEADER_CHECK
#define AGREES(x) (ver[x]!=0 || rs[x]!=DOWN)
#else
#define AGREES(x) ((rs[x]==SERV || rs[x]==PAUSED) && ver[x]==hver[R])
#endif
  :: d_step { FOLLOW && hdr[R]==H_GO && rs[x]!=DOWN && ins[x]==0 && !brk[R] ->
       if :: AGREES(x) -> STEP_OK(x); rs[x] = SERV; ins[x] = 1
#ifdef BUG_NO_ABORT   /* the leader is not told */
          :: else -> skip
#else
          :: else -> ins[P] = 0; rs[P] = PAUSED;
#ifdef WITNESS_REFUSED
            assert(false)
#endif
#endif
       fi;
       hdr[R] = 0; hver[R] = 0 }
  :: d_step { FOLLOW && hdr[R]==H_STOP && rs[x]!=DOWN && ins[x]==0 && !brk[R] ->
       if :: rs[x]==SERV -> rs[x] = PAUSED :: else fi; hdr[R] = 0 }
  /* the step's collective, and its end */
  :: d_step { LEAD && ins[x]==1 && ins[P]==1 && hdr[R]==0 && !brk[R] ->
       assert(ver[x]==ver[P]); STEP_OK(x); STEP_OK(P); ins[x] = 2; ins[P] = 2 }
  :: d_step { ins[x]==2 -> ins[x] = 0 }
  /* the group lost a rank: leave the step, stay paused; it is re-formed when nobody serves */
  :: d_step { brk[R] && rs[x]==SERV -> ins[x] = 0;
       rs[x] = PAUSED }
  :: d_step { LEAD && brk[R] && rs[x]>SERV && rs[P]>SERV && ins[x]==0 && ins[P]==0 -> brk[R] = 0;
#ifdef BUG_KEEP_HEADER     /* a header of the old group is still followed */
       skip }
#else
       hdr[R] = 0; hver[R] = 0 }
#endif
  /* PAUSE: the leader opens one header `stop` */
  :: d_step { LEAD && cmd[x]==C_PAUSE && rs[x]==SERV && ins[x]==0 && hdr[R]==0 && !brk[R] ->
#ifndef BUG_OWN_STEP
       hdr[R] = H_STOP;
#endif
       rs[x] = PAUSED; cmd[x] = 0; ack[x] = conn[x] }
  :: d_step { cmd[x]==C_PAUSE && rs[x]>SERV -> cmd[x] = 0; ack[x] = conn[x] }
#ifdef BUG_OWN_STEP
  :: d_step { FOLLOW && cmd[x]==C_PAUSE && rs[x]==SERV && ins[x]==0 -> rs[x] = PAUSED; cmd[x] = 0; ack[x] = conn[x] }
#endif
  /* LOAD: marked tainted before the first byte changes, and never under a step (property 1) */
#ifdef BUG_NO_TAINT
#define IS_LOADING (rs[x]==TAINT || mem[x]==0)
#else
#define IS_LOADING (rs[x]==TAINT)
#endif
  :: d_step { cmd[x]==C_LOAD && !IS_LOADING && rs[x]!=DOWN -> assert(rs[x]!=SERV && ins[x]==0); mem[x] = 0;
#ifndef BUG_NO_TAINT
       rs[x] = TAINT
#endif
     }
#define CAN_LOAD (up[R] && conn[x] && cur[R]!=0 && has(staged[R],cur[R]))
#define LOAD_DONE rs[x] = LOADED; cmd[x] = 0; ack[x] = 1
  :: d_step { cmd[x]==C_LOAD && IS_LOADING && rs[x]!=DOWN ->
       if
#ifdef ADOPT          /* take the read lock, verify, map */
       :: CAN_LOAD && acont[0]==cur[R] -> pm[x] = 0; LOAD_DONE
       :: CAN_LOAD && acont[0]!=cur[R] && acont[1]==cur[R] -> pm[x] = 1; LOAD_DONE
#if NARENA>2
       :: CAN_LOAD && acont[0]!=cur[R] && acont[1]!=cur[R] && acont[2]==cur[R] -> pm[x] = 2; LOAD_DONE
#endif
#else
       :: CAN_LOAD -> mem[x] = cur[R]; LOAD_DONE
#endif
       :: else -> cmd[x] = 0          /* the source is gone: stays tainted */
       fi }
#ifdef BUG_LEADER_RUNS     /* a leader that restarted runs as soon as it is repaired */
#define AFTER_COMMIT (LEAD && ver[x]==0 -> SERV : PAUSED)
#else
#define AFTER_COMMIT PAUSED
#endif
  :: d_step { cmd[x]==C_COMMIT -> cmd[x] = 0;
       if
#ifdef ADOPT
       :: rs[x]==LOADED -> rs[x] = AFTER_COMMIT; mp[x] = pm[x]; pm[x] = NONE; ver[x] = acont[mp[x]]; ack[x] = conn[x]
#else
       :: rs[x]==LOADED -> rs[x] = AFTER_COMMIT; ver[x] = mem[x]; ack[x] = conn[x]
#endif
       :: else fi }
  /* RESUME: only once the group is whole; nobody holds another committed version (a rank that restarted holds none) */
  :: d_step { cmd[x]==C_RESUME && (FOLLOW || !brk[R]) -> cmd[x] = 0;
       if
       :: whole(x) -> assert(ver[P]==0 || (ver[P]==ver[x] && rs[P]!=LOADED)); rs[x] = SERV; ack[x] = conn[x]
       :: else fi }
#ifdef BUG_RESUME_ALL
  :: d_step { FOLLOW && rs[x]==SERV && ins[x]==0 && hdr[R]==0 && !brk[R] && rs[P]==PAUSED && steps[R]<MAXSTEP ->
       STEP_OK(x); steps[R]++; ins[x] = 1 }
#endif
#ifdef BUG_DEADLINE_RESUME /* the engine resumes by itself */
  :: d_step { LEAD && rs[x]==PAUSED && faults>0 && whole(x) -> faults--; rs[x] = SERV }
#endif
  /* the sidecar is gone: what it had sent is done or lost, then attach again */
  :: d_step { !conn[x] && cmd[x]!=0 -> cmd[x] = 0 }
  :: d_step { !conn[x] && cmd[x]==0 && rs[x]!=DOWN && up[R] ->
       conn[x] = 1; ack[x] = 0; ack[P] = 0; ph[R] = IDLE; rep[R] = 0 }
  /* crash and restart of a rank */
  :: d_step { rs[x]!=DOWN && HIT(R) -> faults--; rs[x] = DOWN; ver[x] = 0; mem[x] = 0; ins[x] = 0;
       cmd[x] = 0; ack[x] = 0; conn[x] = 0; brk[R] = 1;
#ifdef ADOPT
       mp[x] = NONE; pm[x] = NONE;
#endif
     }
  :: d_step { rs[x]==DOWN -> rs[x] = TAINT }
  od
}

/* Property 5: at rest. */
#ifdef ADOPT
#define TGT_THERE(c) THERE(tgt[c])
#else
#define TGT_THERE(c) 1
#endif
#define AT_TARGET(r,c) if :: working(c) && pf[r]==cf[c] && TGT_THERE(c) -> assert(rep[r]==tgt[c]) :: else fi
#define REST(r) \
  assert(up[r] && linked(r) && quiet(r) && hdr[r]==0 && !brk[r]); \
  assert(ins[A(r)]==0 && ins[B(r)]==0); \
  assert(rep[r]==0 || (serving(r) && rep[r]==ver[A(r)])); \
  if :: working(0) || working(1) -> assert(rep[r]!=0 && ph[r]==IDLE) :: else fi; \
  AT_TARGET(r,0); AT_TARGET(r,1)
proctype Monitor() {
  atomic { timeout ->
    assert(cst[0]!=CLAIM && cst[1]!=CLAIM && cst[0]!=STAGING && cst[1]!=STAGING);
    assert(!(working(0) && working(1)));
    REST(0);
#if NREP>1
    REST(1);
#endif
#ifdef WITNESS_SERVED  /* after the faults every replica has served steps and is on the last version */
    assert(!(faults==0 && cst[0]==READY && rep[0]==MAXV && steps[0]==MAXSTEP && (NREP==1 || (rep[1]==MAXV && steps[1]==MAXSTEP))));
#endif
#ifdef WITNESS_ROLLED  /* after the faults a rollback was reported as done */
    assert(!(faults==0 && gdone!=0));
#endif
    skip }
}

init { atomic {
#ifdef ADOPT
  av[0] = 1; acont[0] = 1; av[1] = 0; acont[1] = NONE; av[2] = 0; acont[2] = NONE;
#endif
#if NCO==1
  cst[1] = DEAD;
#endif
  run Coord(0);
#if NCO>1
  run Coord(1);
#endif
  run Sidecar(0);
#if NREP>1
  run Sidecar(1);
#endif
#ifndef COARSE
  run Rank(0); run Rank(1);
#if NREP>1
  run Rank(2); run Rank(3);
#endif
#endif
  run Monitor()
} }

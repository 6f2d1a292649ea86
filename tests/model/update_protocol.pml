/* The update protocol of wsync as a SPIN model: what is modelled, its bounds and what it showed are in README.md.
 *
 * Global state, one looping process for each actor, each option one atomic action. A decision that was sent stays in
 * flight for ever: a member may receive it never, once, many times and in any order (loss, duplication, reordering).
 * The link of a sidecar and a rank is reliable, with one outstanding command; a crash of either end may lose it.
 * Steps are led: rank 0 of a replica opens a step by a header, the other rank follows it.
 *
 * An order is what somebody wanted: a committed publish or a rollback. Its name is the fence and number under which it
 * was taken. A new coordinator follows an order under its own fence and numbers; the order keeps its name.
 *
 * Each fault (crash of a coordinator, sidecar or rank, missed heartbeat, pause deadline, full disc, failed load, lost
 * reply) takes one from NF.
 * Once nothing can move any more (timeout), Monitor checks where the system has come to rest.
 *
 * Bounds:  NF NREP NCO NHOST MAXSTEP MAXD MAXV NROLL FIRST
 * Modes:   ADOPT with NARENA, COARSE, RESTART, FREE_CRASH, LATE, SPLIT_CLAIM, DISC, LOAD_FAILS, REPLIES, ROLL_ANY,
 *          NO_ROLLBACK
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
#ifndef MAXD          /* numbers after which a coordinator takes no order any more; what it learns comes on top */
#define MAXD 3
#endif
#ifndef MAXV
#define MAXV 3
#endif
#ifndef NARENA
#define NARENA 2
#endif
#ifndef FIRST         /* the version that is served before any decision; those before it are held */
#define FIRST 1
#endif
#ifndef NHOST         /* hosts on which a coordinator may start: each has its own record */
#define NHOST 1
#endif
#ifdef LATE           /* numbers of one coordinator, 0 unused */
#define LOGD 7
#else
#define LOGD (MAXD+2)
#endif
#define NONE 7

#if NREP==3
#define NR 3
#define EVERY(M) M(0) M(1) M(2)
#define EACH(M) M(0) M(1) M(2)
#define ALL_OF(c,P) (P(c,0) && P(c,1) && P(c,2))
#elif NREP==2
#define NR 2
#define EVERY(M) M(0) M(1)
#define EACH(M) M(0) M(1)
#define ALL_OF(c,P) (P(c,0) && P(c,1))
#else
#define NR 2
#define EVERY(M) M(0)
#define EACH(M) M(0)
#define ALL_OF(c,P) P(c,0)
#endif
/* EACH: EVERY inside of EVERY, which the preprocessor does not expand twice */
#define EVERYONE ((1<<NREP)-1)

/* coordinator */
#define OFF 0
#define CLAIM 1
#define READY 2
#define STAGING 3
#define WRITING 4
#define DEAD 5
#define STOPPED 6
#define CHOSEN 7      /* an epoch is chosen, not stored yet */
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
byte nextv = FIRST+1;          /* a version number is given once */

/* coordinators, each with its trainer */
byte cst[NCO], cf[NCO];          /* cf: fence = epoch*4 + run id */
byte hst[NCO];                  /* its host */
byte got[NCO];                  /* Hellos heard while it claims ... */
byte hO[NCO*NR], hT[NCO*NR];     /* ... and what they told */
byte ord[NCO], tgt[NCO], cwd[NCO];   /* the order it follows, that order's target; withdrawn versions */
byte known[NCO];                /* names: in its record, or heard */
byte nd[NCO], pubv[NCO], ackS[NCO];
byte dO[NCO*LOGD], dT[NCO*LOGD], dW[NCO*LOGD];   /* what it has sent, by number */
#ifdef DISC
byte lost[NCO];                 /* who could not store the newest number, and has not been sent it again */
#endif

/* the record of each host, on disc: fence of its last writer, order, target, withdrawn, names */
byte rF[NHOST], rO[NHOST], rT[NHOST], rW[NHOST], rM[NHOST];

#ifdef REPLIES
byte heard[NCO];                /* who has answered the newest number, as far as this coordinator knows */
byte rpl[NR];                   /* the answer of a sidecar that is on its way: fence*8+number, 0: none */
bit due[NR];                    /* it has not reported the outcome of its newest number */
#define FORGET_ANSWERS(c) heard[c] = 0
#define ANSWER(r) rpl[r] = pK[r]; due[r] = 1
#define NO_ANSWER(r) rpl[r] = 0; due[r] = 0
#else
#define FORGET_ANSWERS(c) skip
#define ANSWER(r) skip
#define NO_ANSWER(r) skip
#endif

/* sidecars: on disc. pK: newest number taken or passed over = fence*8+number; pO: the order it has */
byte pf[NR], pK[NR], pO[NR], pT[NR] = FIRST, pW[NR];
/* sidecars: in memory */
bool up[NR] = 1;
byte staged[NR] = (1<<(FIRST+1))-2;   /* set of versions held */
byte ph[NR], cur[NR];          /* phase; version the switch goes to */
byte rep[NR] = FIRST;          /* version reported as ready, 0: not ready */
#ifdef DISC
byte owed[NR];                 /* withdrawn, as a decision said that could not be stored */
#define OWED(r) owed[r]
#else
#define OWED(r) 0
#endif

/* ranks */
byte rs[2*NR] = SERV, ver[2*NR] = FIRST, mem[2*NR] = FIRST;
#ifdef LOAD_FAILS
bit lf[NR];                       /* a rank has answered that its load has failed */
#define LOAD_FAILED(r) lf[r]
#define NO_FAILURE(r) lf[r] = 0
#else
#define LOAD_FAILED(r) 0
#define NO_FAILURE(r) skip
#endif
byte ins[2*NR];                   /* 1: in the step before its collective, 2: after it */
byte cmd[2*NR];
bool ack[2*NR], conn[2*NR] = 1;
byte hdr[NR], hver[NR], steps[NR];
bool brk[NR];                  /* the group lost a rank and is not re-formed */
#ifdef ADOPT
byte av[4], acont[4];          /* arena: version it is meant for, content (0: being written) */
byte mp[4], pm[4] = NONE;      /* arena in use, arena mapped for the next version */
#endif

/* what really happened, for the checks only */
byte gpf[NR], gwd[NR], gdone[NR];
byte gall, grb[NCO];            /* withdrawn by an operator, ever; which numbers of a coordinator are rollbacks */
byte gO[NHOST], gT[NHOST], gW[NHOST];   /* the newest order that a host's coordinators sent, its target; withdrawn */
byte gE[NHOST];                /* epochs that were claimed */
byte gvf[MAXV+1];              /* who published a version: versions are ordered by fence, then by number */
#ifdef AW_FORWARD
byte glast[2] = FIRST;
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
#define alive(c) ((cst[c]>=CLAIM && cst[c]<=WRITING) || cst[c]==CHOSEN)
#define working(c) (cst[c]>=READY && cst[c]<=WRITING)
#ifdef BUG_EPOCH_ONLY
#define fence_ok(f,r) ((f)/4 >= pf[r]/4)
#define joined(c,r) (cf[c]/4 == pf[r]/4)
#define dec_new(c,d,r) (cf[c]/4 > pK[r]/32 || (cf[c]/4 == pK[r]/32 && (d) >= pK[r]%8 && cf[c]*8+(d)!=pK[r]))
#else
#define fence_ok(f,r) ((f) >= pf[r])
#define joined(c,r) (cf[c] == pf[r])
#define dec_new(c,d,r) (cf[c]*8+(d) > pK[r])
#endif
#define older(v,w) (gvf[v]*8+(v) < gvf[w]*8+(w))
/* the order o is a rollback: o = fence*8+number, and the fence ends with the coordinator */
#define rollback(o) ((o)!=0 && has(grb[((o)/8)%4-1],(o)%8))

/* Property 4: what changes state under fence f was not fenced out. */
inline see(f,r) { assert(f >= gpf[r]); pf[r] = f; gpf[r] = f }
/* Property 1, at the beginning and at the collective of a step: whole weights, and the version that is reported. */
#define STEP_OK(x) assert(ver[x]!=0 && MEM(x)==ver[x]); assert(rep[(x)/2]==0 || rep[(x)/2]==ver[x])
/* Property 3: a withdrawn version is never committed and never resumed. */
#define NOT_WITHDRAWN(r,v) assert(!has(gwd[r],v) && !has(gdone[r],v))
/* Property 10: who knows that a version is withdrawn, on disc or not, is not ready on it. */
#define READY_OK(r) assert(rep[r]==0 || !has(gwd[r]|OWED(r),rep[r]))
#define UNREADY(r) if :: rep[r]!=0 && has(pW[r]|OWED(r),rep[r]) -> rep[r] = 0 :: else fi
/* Property 7: a target goes back only by a rollback newer than what the sidecar had, or from a withdrawn version. */
#define NOT_BACK(r,o,v) assert(pT[r]==0 || !older(v,pT[r]) || has(gall,pT[r]) || ((o)>pO[r] && rollback(o)))
/* Property 8: the newest order that a host's coordinators have given or followed is not forgotten on that host. */
#define KEPT(c) assert((gW[hst[c]] & ~cwd[c])==0 && (ord[c]>=gO[hst[c]] || has(cwd[c],gT[hst[c]])))

#define TO(c,d) ((c)*LOGD+(d))
/* The record is stored, then the decision is sent. Who finds a newer coordinator's record stops. */
#ifdef BUG_RECORD_OVERWRITE
#define RECORD_MINE(c) 1
#else
#define RECORD_MINE(c) (rF[hst[c]]==cf[c])
#endif
#ifdef BUG_SEND_FIRST /* the record is written some time after */
byte late_write[NCO];
#define STORE(c) late_write[c] = 1
#else
#define STORE(c) WRITE_RECORD(c)
#endif
#define WRITE_RECORD(c) \
  rO[hst[c]] = ord[c]; rT[hst[c]] = tgt[c]; rW[hst[c]] = cwd[c]; rM[hst[c]] = rM[hst[c]]|known[c]
#define SEND(c) \
  nd[c]++; assert(nd[c]<LOGD); \
  KEPT(c); if :: ord[c]>gO[hst[c]] -> gO[hst[c]] = ord[c]; gT[hst[c]] = tgt[c] :: else fi; gW[hst[c]] = cwd[c]; \
  STORE(c); \
  dO[TO(c,nd[c])] = ord[c]; dT[TO(c,nd[c])] = tgt[c]; dW[TO(c,nd[c])] = cwd[c]; SENT_AGAIN(c); FORGET_ANSWERS(c)
#ifdef NROLL          /* rollbacks of all coordinators together; at rest they are used up */
byte rolled;
#define ROLLBACK_LEFT (rolled<NROLL)
#define COUNT_ROLLBACK rolled++
#else
#define ROLLBACK_LEFT 1
#define COUNT_ROLLBACK skip
#endif
#define FORGET(c) FORGET_ANSWERS(c); got[c] = 0; pubv[c] = 0; ackS[c] = 0; ord[c] = 0; tgt[c] = 0; cwd[c] = 0; known[c] = 0; SENT_AGAIN(c); \
  hO[c*NR] = 0; hT[c*NR] = 0; hO[c*NR+1] = 0; hT[c*NR+1] = 0; hO[c*NR+NR-1] = 0; hT[c*NR+NR-1] = 0
#define STOP(c) cst[c] = STOPPED; FORGET(c)
#ifdef DISC
#define SENT_AGAIN(c) lost[c] = 0
#else
#define SENT_AGAIN(c) skip
#endif
/* a new order: a committed publish, or a rollback; its name is the fence and number under which it was taken */
inline order(c,v,w) {
  if
  :: RECORD_MINE(c) ->
       cwd[c] = cwd[c]|(w); ord[c] = cf[c]*8+nd[c]+1; tgt[c] = v;
       SEND(c)
  :: else -> STOP(c)
  fi
}
inline rollback_to(c,v) {
  COUNT_ROLLBACK;
  if :: RECORD_MINE(c) -> gall = gall|bit(tgt[c]); grb[c] = grb[c]|bit(nd[c]+1) :: else fi;
  order(c,v,bit(tgt[c]))
}
/* an old order is followed: it keeps its name */
inline follow(c) {
  if :: RECORD_MINE(c) -> SEND(c) :: else -> STOP(c) fi
}

#ifdef RESTART        /* a coordinator starts only when the one before has crashed */
#define MAY_START(c) ((c)==0 || cst[c-1]==DEAD || cst[c-1]==STOPPED)
#else
#define MAY_START(c) 1
#endif
#ifdef FREE_CRASH     /* a crash of a coordinator costs nothing; the last one stays, so that there is rest */
#define CRASH_LEFT (c<NCO-1)
#define CRASH skip
#else
#define CRASH_LEFT (faults>0)
#define CRASH faults--
#endif
#define RECORD(c) ord[c] = rO[hst[c]]; tgt[c] = rT[hst[c]]; cwd[c] = rW[hst[c]]; known[c] = rM[hst[c]]
#ifdef BUG_NO_RECORD
#define READ_EARLY(c) skip
#define READ_RECORD(c) skip
#elif defined(BUG_READ_EARLY) /* read before the lock is held */
#define READ_EARLY(c) RECORD(c)
#define READ_RECORD(c) skip
#else
#define READ_EARLY(c) skip
#define READ_RECORD(c) RECORD(c)
#endif
/* the newest order whose target is not withdrawn */
#ifdef AW_TARGET      /* the highest version that any replica has begun or finished */
#define CANDIDATE(c,o,t) if :: (t)>tgt[c] -> ord[c] = o; tgt[c] = t :: else fi
#elif defined(BUG_WITHDRAWN_NEWEST)
#define CANDIDATE(c,o,t) if :: (t)!=0 && (tgt[c]==0 || (o)>ord[c]) -> ord[c] = o; tgt[c] = t :: else fi
#else
#define CANDIDATE(c,o,t) if :: (t)!=0 && !has(cwd[c],t) && (tgt[c]==0 || has(cwd[c],tgt[c]) || (o)>ord[c]) -> \
       ord[c] = o; tgt[c] = t :: else fi
#endif
/* all known orders lead to withdrawn versions: no target, until somebody publishes; all learn what is withdrawn */
#if defined(AW_TARGET) || defined(BUG_WITHDRAWN_NEWEST)
#define LEAVE_WITHDRAWN(c) skip
#elif defined(WITNESS_NO_TARGET)
#define LEAVE_WITHDRAWN(c) assert(!has(cwd[c],tgt[c]))
#else
#define LEAVE_WITHDRAWN(c) if :: has(cwd[c],tgt[c]) -> ord[c] = 0; tgt[c] = 0 :: else fi
#endif
proctype Coord(byte c) {
  byte e;
end:
  do
  /* start: read the fences that can be read now, choose the next epoch */
#define EPOCH_OF(r) if :: up[r] && pf[r]/4 > e -> e = pf[r]/4 :: else fi;
#define CHOOSE(c) READ_EARLY(c); cf[c] = (e+1)*4 + c + 1; e = 0; cst[c] = CHOSEN; CLAIM_NOW(c)
  /* claim the epoch under the record's lock: read it, compare, store */
/* property 9: no other has claimed it on this host */
#define CLAIM_EPOCH(c) READ_RECORD(c); assert(!has(gE[hst[c]],cf[c]/4)); gE[hst[c]] = gE[hst[c]]|bit(cf[c]/4); \
       rF[hst[c]] = cf[c]; cst[c] = CLAIM
#ifdef SPLIT_CLAIM
#define CLAIM_NOW(c) skip
#ifdef BUG_EPOCH_RACE
  :: d_step { cst[c]==CHOSEN -> CLAIM_EPOCH(c) }
#else
  :: d_step { cst[c]==CHOSEN && rF[hst[c]]/4 < cf[c]/4 -> CLAIM_EPOCH(c) }
  :: d_step { cst[c]==CHOSEN && rF[hst[c]]/4 >= cf[c]/4 -> cf[c] = 0; cst[c] = OFF; FORGET(c) }
#endif
#else
#define CLAIM_NOW(c) CLAIM_EPOCH(c)
#endif
#ifdef LATE           /* only one has been heard so far */
#define START_ON(h,r) \
  :: d_step { cst[c]==OFF && MAY_START(c) && (c>0 || h==0) && h<NHOST && up[r] -> hst[c] = h; \
       e = rF[h]/4; EPOCH_OF(r) CHOOSE(c) }
#define START_HEARING(r) START_ON(0,r) START_ON(NHOST-1,r)
  EVERY(START_HEARING)
#else
#define UP(c,r) (!up[r])
  :: d_step { cst[c]==OFF && MAY_START(c) && !ALL_OF(c,UP) -> e = rF[0]/4; EACH(EPOCH_OF) CHOOSE(c) }
#endif
  /* claim: the sidecar stores the fence and answers with its Hello */
#define HELLO(r) \
  :: d_step { cst[c]==CLAIM && up[r] && !has(got[c],r) && HELLO_OK(r) -> \
       HELLO_FENCE(r); got[c] = got[c]|bit(r); known[c] = known[c]|bit(r); \
       cwd[c] = cwd[c]|pW[r]; hO[c*NR+r] = pO[r]; hT[c*NR+r] = HELLO_TARGET(r) }
#ifdef AW_HELLO       /* Hellos are read first, the fence arrives later */
#define HELLO_OK(r) 1
#define HELLO_FENCE(r) skip
#else
#define HELLO_OK(r) fence_ok(cf[c],r)
#define HELLO_FENCE(r) see(cf[c],r)
#endif
#ifdef AW_TARGET
#define HELLO_TARGET(r) (ver[A(r)]>pT[r] -> ver[A(r)] : pT[r])
#else
#define HELLO_TARGET(r) pT[r]
#endif
  EVERY(HELLO)
  /* enough Hellos: follow the newest order */
#define KNOWS(r) assert(!has(got[c],r) || pf[r]>cf[c] || !has(gwd[r],tgt[c]));   /* property 6 */
#define TOLD(r) CANDIDATE(c,hO[c*NR+r],hT[c*NR+r]);
#ifdef AW_NEW_ORDER /* what was found is decided anew: it looks newer than what nobody has told of yet */
#define FOLLOW_NEWEST(c) if :: RECORD_MINE(c) -> ord[c] = cf[c]*8+nd[c]+1; SEND(c) :: else -> STOP(c) fi
#elif defined(AW_FALLBACK_NEW) /* who must leave a withdrawn target decides the older order anew */
#define FITS(c,r) (pf[r]!=cf[c] || pO[r]<=ord[c])
#define FOLLOW_NEWEST(c) \
  if :: RECORD_MINE(c) -> if :: !ALL_OF(c,FITS) -> ord[c] = cf[c]*8+nd[c]+1 :: else fi; SEND(c) :: else -> STOP(c) fi
#elif defined(BUG_WITHDRAWN_NEWEST)
#define FOLLOW_NEWEST(c) if :: !has(cwd[c],tgt[c]) -> follow(c) :: else -> nd[c] = nd[c] fi
#else
#define FOLLOW_NEWEST(c) follow(c)
#endif
#define BEGIN_WORK(c) \
       EACH(TOLD) LEAVE_WITHDRAWN(c); EACH(KNOWS) \
       got[c] = 0; hO[c*NR] = 0; hT[c*NR] = 0; hO[c*NR+1] = 0; hT[c*NR+1] = 0; hO[c*NR+NR-1] = 0; hT[c*NR+NR-1] = 0; \
       cst[c] = READY; FOLLOW_NEWEST(c)
#define HEARD(c,r) (has(got[c],r) || !up[r])
#ifdef LATE           /* names are waited for, but not for ever */
  :: d_step { cst[c]==CLAIM && got[c]!=0 -> BEGIN_WORK(c) }
#else
  :: d_step { cst[c]==CLAIM && got[c]!=0 && ALL_OF(c,HEARD) -> BEGIN_WORK(c) }
#if NREP>1
  :: d_step { cst[c]==CLAIM && got[c]!=0 && got[c]!=EVERYONE && (has(got[c],1) -> HIT(0) : HIT(1)) ->   /* heartbeat missed */
       faults--; BEGIN_WORK(c) }
#endif
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
#ifdef LATE
#define MEMBER(c,r) (up[r] && pf[r]==cf[c])
#else
#define MEMBER(c,r) up[r]
#endif
#define HAS_STAGED(c,r) (has(ackS[c],r) || !MEMBER(c,r))
#define COMMIT(c) order(c,pubv[c],0); \
       if :: cst[c]==STAGING -> cst[c] = READY; gvf[tgt[c]] = cf[c] :: else fi; pubv[c] = 0; ackS[c] = 0
  :: d_step { cst[c]==STAGING && ackS[c]!=0 && ALL_OF(c,HAS_STAGED) -> COMMIT(c) }
#if NREP>1 && !defined(LATE)
  :: d_step { cst[c]==STAGING && (ackS[c]==1 || ackS[c]==2) && (ackS[c]==2 -> HIT(0) : HIT(1)) ->   /* heartbeat missed */
       faults--; COMMIT(c) }
#endif
  :: d_step { cst[c]==STAGING && faults>0 -> faults--; pubv[c] = 0; ackS[c] = 0; cst[c] = READY } /* deadline: round failed */
  /* rollback: every live replica still holds the version */
#ifndef NO_ROLLBACK
#define HOLDS_1(c,r) (!MEMBER(c,r) || has(staged[r],1))
#define MAY_ROLL_BACK(c,v) (cst[c]==READY && nd[c]<MAXD && ROLLBACK_LEFT && older(v,tgt[c]) && !has(cwd[c],v))
  :: d_step { MAY_ROLL_BACK(c,1) && ALL_OF(c,HOLDS_1) -> rollback_to(c,1) }
#ifdef ROLL_ANY
#define HOLDS_2(c,r) (!MEMBER(c,r) || has(staged[r],2))
  :: d_step { MAY_ROLL_BACK(c,2) && ALL_OF(c,HOLDS_2) -> rollback_to(c,2) }
#endif
#if NREP>1 && !defined(LATE)
#define ROLLBACK_WITHOUT(r) \
  :: d_step { MAY_ROLL_BACK(c,1) && up[r] && !has(staged[r],1) && HIT(r) && \
       up[1-(r)] && has(staged[1-(r)],1) -> faults--; rollback_to(c,1) }   /* heartbeat missed */
  ROLLBACK_WITHOUT(0) ROLLBACK_WITHOUT(1)
#endif
#endif
  /* a sidecar joins late: it stores the fence and says its Hello; of what was sent before it gets the newest */
#define JOIN(r) \
  :: d_step { working(c) && up[r] && !joined(c,r) && fence_ok(cf[c],r) -> \
       see(cf[c],r); known[c] = known[c]|bit(r); cwd[c] = cwd[c]|pW[r]; \
       if :: nd[c]>1 -> pK[r] = cf[c]*8+nd[c]-1 :: else fi }
  EVERY(JOIN)
  /* a member tells of a newer order, or of withdrawn versions: the fleet follows the newest order, and all learn it */
#ifdef BUG_NO_RAISE
#define TELLS_NEWER(c,r) 0
#else
#define TELLS_NEWER(c,r) (pf[r]==cf[c] && pT[r]!=0 && (pO[r]>ord[c] || tgt[c]==0) && !has(cwd[c],pT[r]))
#endif
#define TELLS_NOTHING(c,r) (!TELLS_NEWER(c,r))
#ifdef BUG_WITHDRAWN_UNSENT /* only what concerns the target is sent on */
#define UNSENT(c) has(cwd[c],tgt[c])
#elif defined(BUG_WITHDRAWN_NEWEST)
#define UNSENT(c) (cwd[c]!=dW[TO(c,nd[c])] && !has(cwd[c],tgt[c]))
#else
#define UNSENT(c) (cwd[c]!=dW[TO(c,nd[c])])
#endif
#define JOINED_CANDIDATE(r) if :: pf[r]==cf[c] -> CANDIDATE(c,pO[r],pT[r]) :: else fi;
  :: d_step { cst[c]==READY && (UNSENT(c) || !ALL_OF(c,TELLS_NOTHING)) ->
       EACH(JOINED_CANDIDATE) LEAVE_WITHDRAWN(c); FOLLOW_NEWEST(c) }
#ifdef BUG_SEND_FIRST
  :: d_step { late_write[c]==1 && working(c) -> late_write[c] = 0; WRITE_RECORD(c) }
#endif
  /* a decision that a sidecar could not store is sent again */
#if defined(DISC) && !defined(BUG_DECIDE_ONCE)
  :: d_step { working(c) && lost[c]!=0 -> lost[c] = 0 }
#endif
#ifdef REPLIES
  /* an answer arrives: property 11, what is taken for stored has been stored */
#define HEAR(r) \
  :: d_step { working(c) && nd[c]>0 && joined(c,r) && rpl[r]==cf[c]*8+nd[c] -> \
       assert(pK[r]>=cf[c]*8+nd[c]); heard[c] = heard[c]|bit(r); rpl[r] = 0 }
  EVERY(HEAR)
  /* it was lost: the decision is sent again, and answered again */
#ifndef BUG_ASK_ONCE
#define ASK_AGAIN(r) \
  :: d_step { working(c) && nd[c]>0 && up[r] && joined(c,r) && !has(heard[c],r) && pK[r]==cf[c]*8+nd[c] && rpl[r]!=pK[r] -> \
       rpl[r] = pK[r] }
  EVERY(ASK_AGAIN)
#endif
#endif
  /* a rollback is reported as done to the user */
#ifdef REPLIES
#define ACKED(c,r) (has(heard[c],r) && rep[r]==tgt[c])
#else
#define ACKED(c,r) (pK[r]==cf[c]*8+nd[c] && rep[r]==tgt[c])
#endif
#ifdef AW_LIVE
#define ACKQ(c,r) (!up[r] || ACKED(c,r))
#else
#define ACKQ(c,r) (!has(known[c],r) || ACKED(c,r))
#endif
#define UNDONE(c,r) (!has(known[c],r) || (dW[TO(c,nd[c])] & ~gdone[r])==0)
#define DONE(r) if :: has(known[c],r) -> gdone[r] = gdone[r]|dW[TO(c,nd[c])] :: else fi;
  :: d_step { working(c) && nd[c]>0 && !ALL_OF(c,UNDONE) && ALL_OF(c,ACKQ) -> EACH(DONE) skip }
  /* crash; learning of a higher fence */
  :: d_step { alive(c) && CRASH_LEFT -> CRASH; cst[c] = DEAD; FORGET(c) }
#define FENCED(c,r) (!up[r] || pf[r]<=cf[c])
  :: d_step { alive(c) && !ALL_OF(c,FENCED) -> STOP(c) }
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
  /* A decision arrives: any that was sent under the fence that the sidecar has. Store, then act. The withdrawn
   * versions are taken in any case; the order only if it is not older than the one that the sidecar has, or if that
   * one's target is withdrawn. */
#ifdef BUG_OBEY_OLDER
#define NEWER(c,d,r) 1
#else
#define NEWER(c,d,r) (dO[TO(c,d)]>=pO[r] || has(pW[r]|dW[TO(c,d)],pT[r]))
#endif
#define ARRIVES(c,d,r) (up[r] && nd[c]>=d && joined(c,r) && dec_new(c,d,r) && NOT_LOST(c,d,r))
#define OBEYS(c,d,r) (dT[TO(c,d)]==0 || (!has(pW[r],dT[TO(c,d)]) && NEWER(c,d,r)))
#ifdef DISC
#define NOT_LOST(c,d,r) (nd[c]!=d || !has(lost[c],r))
#define STORED(r) owed[r] = 0
#else
#define NOT_LOST(c,d,r) 1
#define STORED(r) skip
#endif
#define DECISION(c,d) \
  :: d_step { ARRIVES(c,d,r) && OBEYS(c,d,r) -> \
       see(cf[c],r); pK[r] = cf[c]*8+d; \
       if :: dT[TO(c,d)]!=0 -> NOT_BACK(r,dO[TO(c,d)],dT[TO(c,d)]); pO[r] = dO[TO(c,d)]; pT[r] = dT[TO(c,d)] :: else fi; \
       TAKE_WITHDRAWN(c,d); gwd[r] = gwd[r]|dW[TO(c,d)]; STORED(r); UNREADY(r); READY_OK(r); ANSWER(r) } \
  :: d_step { ARRIVES(c,d,r) && !OBEYS(c,d,r) && (dW[TO(c,d)] & ~pW[r])!=0 -> \
       see(cf[c],r); TAKE_WITHDRAWN(c,d); gwd[r] = gwd[r]|dW[TO(c,d)]; UNREADY(r); READY_OK(r) }
#ifdef BUG_NO_WITHDRAW
#define TAKE_WITHDRAWN(c,d) skip
#else
#define TAKE_WITHDRAWN(c,d) pW[r] = pW[r]|dW[TO(c,d)]
#endif
#if defined(LATE) || MAXD>3
#define DECISIONS(c) DECISION(c,1) DECISION(c,2) DECISION(c,3) DECISION(c,4) DECISION(c,5) DECISION(c,6)
#elif MAXD==3
#define DECISIONS(c) DECISION(c,1) DECISION(c,2) DECISION(c,3) DECISION(c,4)
#else
#define DECISIONS(c) DECISION(c,1) DECISION(c,2) DECISION(c,3)
#endif
  DECISIONS(0)
#if NCO>1
  DECISIONS(1)
#endif
#if NCO>2
  DECISIONS(2)
#endif
#ifdef DISC           /* the disc is full for a moment: the newest decision is refused, and known in memory */
#define DISC_FULL(c) \
  :: d_step { alive(c) && nd[c]>0 && ARRIVES(c,nd[c],r) && HIT(r) -> \
       faults--; lost[c] = lost[c]|bit(r); owed[r] = owed[r]|dW[TO(c,nd[c])]; NOT_READY(r); READY_OK(r) }
#ifdef BUG_OWES_READY
#define NOT_READY(r) skip
#else
#define NOT_READY(r) UNREADY(r)
#endif
  DISC_FULL(0)
#if NCO>1
  DISC_FULL(1)
#endif
#endif
  /* stage the waiting version, or the target (catch-up, repair) */
#ifdef ADOPT
#define THERE(v) (acont[0]==v || acont[1]==v || (NARENA>2 && acont[2]==v))
#else
#define THERE(v) 1
#endif
#ifdef REPLIES         /* Staged is lost: Stage is sent again, and a version that is here is staged at once */
#define STAGED_LOST(c) \
  :: d_step { up[r] && cst[c]==STAGING && joined(c,r) && THERE(pubv[c]) && !has(ackS[c],r) && HIT(r) -> \
       faults--; see(cf[c],r); staged[r] = staged[r]|bit(pubv[c]) }
#else
#define STAGED_LOST(c)
#endif
#define STAGE(c) \
  :: d_step { up[r] && cst[c]==STAGING && joined(c,r) && THERE(pubv[c]) && !has(ackS[c],r) -> \
       see(cf[c],r); staged[r] = staged[r]|bit(pubv[c]); ackS[c] = ackS[c]|bit(r) } \
  STAGED_LOST(c) \
  :: d_step { up[r] && working(c) && cf[c]==pf[r] && pT[r]!=0 && tgt[c]==pT[r] && !has(staged[r],pT[r]) && THERE(pT[r]) -> \
       staged[r] = staged[r]|bit(pT[r]) }
  STAGE(0)
#if NCO>1
  STAGE(1)
#endif
#if NCO>2
  STAGE(2)
#endif
#ifdef ADOPT
  /* release: an older version that is neither served nor the target */
  :: d_step { up[r] && ph[r]==IDLE && rep[r]!=0 && rep[r]==pT[r] && NARENA==2 && (staged[r] & (bit(pT[r])-1))!=0 ->
       staged[r] = staged[r] & ~(bit(pT[r])-1) }
#endif
#define MAY_REPORT(r,v) (!has(pW[r]|OWED(r),v))
#define MAY_SWITCH(r) (!has(pW[r]|OWED(r),pT[r]))
#ifdef COARSE         /* the switch of a replica as one action, no rank processes */
  :: d_step { up[r] && rep[r]==0 && MAY_REPORT(r,ver[A(r)]) -> rep[r] = ver[A(r)]; READY_OK(r) }
  :: d_step { up[r] && has(staged[r],pT[r]) && rep[r]!=pT[r] && pT[r]!=0 && MAY_SWITCH(r) ->
       NOT_WITHDRAWN(r,pT[r]);
       ver[A(r)] = pT[r]; ver[B(r)] = pT[r]; mem[A(r)] = pT[r]; mem[B(r)] = pT[r]; rep[r] = pT[r] }
#else
  /* attached to ranks that serve; a rank is lost, or the leader reports a header that failed */
  :: d_step { up[r] && ph[r]==IDLE && rep[r]==0 && quiet(r) && serving(r) && MAY_REPORT(r,ver[A(r)]) ->
       rep[r] = ver[A(r)]; READY_OK(r) }
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
            if :: has(staged[r],cur[r]) && !has(pW[r],cur[r]) -> NO_FAILURE(r); LOAD_ALL(r); ph[r] = LOADING
            :: else -> ph[r] = IDLE fi            /* stays paused, not ready */
       fi }
#ifdef LOAD_FAILS
  /* A rank could not load. If no rank's memory has changed, the replica may go on with what it has, and tries again
   * later; else it is loaded again at once. */
  :: d_step { ph[r]==LOADING && linked(r) && acked(r) && lf[r] -> lf[r] = 0;
#ifdef BUG_FAILED_COMMITS  /* an answer is taken for a load that is complete */
       COMMIT_ALL(r); ph[r] = COMMITTING }
#else
       if :: intact(r) && MAY_GO_BACK(r,ver[A(r)]) -> NOT_WITHDRAWN(r,ver[A(r)]); cur[r] = ver[A(r)]; resume(r)
          :: else -> ph[r] = ALLPAUSED
       fi;
#ifdef WITNESS_FAILED
       assert(false)
#endif
     }
#endif
#endif
  :: d_step { ph[r]==LOADING && linked(r) && acked(r) && !LOAD_FAILED(r) ->
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
       if :: serving(r) -> if :: MAY_REPORT(r,cur[r]) -> rep[r] = cur[r]; READY_OK(r) :: else fi;
            assert(ver[A(r)]==cur[r] && MEM(A(r))==cur[r] && MEM(B(r))==cur[r]);    /* property 2 */
#ifdef AW_FORWARD
            glast[r] = cur[r]
#endif
       :: else fi }             /* its header failed: begin again */
#endif
#ifdef REPLIES
  /* the outcome of a decision is reported under the fence that the sidecar has then; an answer is lost */
#ifdef BUG_OUTCOME_FENCE   /* also under a higher one than the decision's: numbers begin anew there */
#define OUTCOME_OF(r) (pf[r]*8+pK[r]%8)
#define MAY_REPORT_OUTCOME(r) 1
#else
#define OUTCOME_OF(r) pK[r]
#define MAY_REPORT_OUTCOME(r) (pf[r]==pK[r]/8)
#endif
  :: d_step { up[r] && due[r] && rep[r]==pT[r] && pT[r]!=0 ->
       due[r] = 0; if :: MAY_REPORT_OUTCOME(r) -> rpl[r] = OUTCOME_OF(r) :: else fi }
  :: d_step { rpl[r]!=0 && HIT(r) -> faults--; rpl[r] = 0 }
#endif
  /* crash: memory, locks and links go; what was sent may still arrive */
  :: d_step { up[r] && HIT(r) -> faults--; up[r] = 0; staged[r] = 0; ph[r] = IDLE; cur[r] = 0; rep[r] = 0; STORED(r); NO_ANSWER(r);
#ifndef COARSE
       conn[A(r)] = 0; conn[B(r)] = 0; ack[A(r)] = 0; ack[B(r)] = 0;
#endif
#ifdef BUG_FENCE_MEM
       pf[r] = 0; pK[r] = 0;
#endif
#ifdef AW_PERSIST     /* only the fence is stored */
       pK[r] = 0; pO[r] = 0; pT[r] = 0; pW[r] = 0;
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
#ifdef LOAD_FAILS     /* before the first byte, or after it: the rank answers, and stays tainted if a byte has changed */
  :: d_step { cmd[x]==C_LOAD && rs[x]!=DOWN && conn[x] && HIT(R) ->
       faults--; cmd[x] = 0; ack[x] = 1; lf[R] = 1;
#ifdef BUG_FAILED_WHOLE    /* a rank that held a version takes itself for whole again */
       if :: rs[x]==TAINT && ver[x]!=0 -> rs[x] = PAUSED :: else fi
#endif
     }
#endif
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
/* every sidecar that has joined has the newest decision and all that is withdrawn, and serves its target */
#ifdef REPLIES
#define ALL_ANSWERED(r,c) assert(nd[c]==0 || has(heard[c],r))
#else
#define ALL_ANSWERED(r,c) skip
#endif
#define AT_TARGET(r,c) \
  if :: working(c) && pf[r]==cf[c] -> ALL_ANSWERED(r,c) :: else fi; \
  if :: working(c) && pf[r]==cf[c] -> \
        assert(pK[r]==cf[c]*8+nd[c] && (tgt[c]==0 || (pO[r]==ord[c] && pT[r]==tgt[c])) && (cwd[c] & ~pW[r])==0) \
     :: else fi; \
  if :: working(c) && pf[r]==cf[c] && tgt[c]!=0 && TGT_THERE(c) -> assert(rep[r]==tgt[c]) :: else fi
#ifdef COARSE
#define RANKS_AT_REST(r) assert(up[r])
#else
#define RANKS_AT_REST(r) \
  assert(up[r] && linked(r) && quiet(r) && hdr[r]==0 && !brk[r]); \
  assert(ins[A(r)]==0 && ins[B(r)]==0); \
  assert(rep[r]==0 || (serving(r) && rep[r]==ver[A(r)]))
#endif
#define LAST (NCO-1)
#define MIDDLE (NCO/2)
#define LEADS(c) (working(c) && tgt[c]!=0)
#define REST(r) \
  RANKS_AT_REST(r); \
  if :: LEADS(0) || LEADS(MIDDLE) || LEADS(LAST) -> assert(rep[r]!=0 && ph[r]==IDLE) :: else fi; \
  AT_TARGET(r,0); AT_TARGET(r,MIDDLE); AT_TARGET(r,LAST);
#ifdef ROLL_ANY       /* only then can every known order lead to a withdrawn version */
#define HAS_TARGET(c) 1
#else
#define HAS_TARGET(c) (!working(c) || tgt[c]!=0)
#endif
#define SETTLED(c) assert(cst[c]!=CHOSEN && cst[c]!=CLAIM && cst[c]!=STAGING && HAS_TARGET(c))
proctype Monitor() {
  atomic { timeout ->
    SETTLED(0); SETTLED(MIDDLE); SETTLED(LAST);
    assert(NCO<2 || !(working(0) && working(LAST)));
    assert(NCO<3 || !(working(MIDDLE) && (working(0) || working(LAST))));
    EVERY(REST)
#ifdef WITNESS_SERVED  /* after the faults every replica has served steps and is on the last version */
    assert(!(faults==0 && cst[0]==READY && rep[0]==MAXV && steps[0]==MAXSTEP && (NREP==1 || (rep[1]==MAXV && steps[1]==MAXSTEP))));
#endif
#ifdef WITNESS_ROLLED  /* after the faults a rollback was reported as done */
    assert(!(faults==0 && gdone[0]!=0));
#endif
    skip }
}

init { atomic {
#ifdef ADOPT
  av[0] = 1; acont[0] = 1; av[1] = 0; acont[1] = NONE; av[2] = 0; acont[2] = NONE;
#endif
#ifndef LATE          /* every name is in the record */
  rM[0] = EVERYONE;
#endif
  run Coord(0);
#if NCO>1
  run Coord(1);
#endif
#if NCO>2
  run Coord(2);
#endif
  run Sidecar(0);
#if NREP>1
  run Sidecar(1);
#endif
#if NREP>2
  run Sidecar(2);
#endif
#ifndef COARSE
  run Rank(0); run Rank(1);
#if NREP>1
  run Rank(2); run Rank(3);
#endif
#endif
  run Monitor()
} }
